"""A recorded job as a Chakra execution trace, which ASTRA-sim and Chakra's own tools read.

A trace is a file for each rank: a GlobalMetadata message, then a Node message for each node, each
after its length as a varint. The schema is MLCommons Chakra's et_def.proto; only the fields that
are written are described here, with its field numbers.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.proto import serialize_length_prefixed

from hvscale.core.errors import RequestError
from hvscale.core.numbers import read_whole
from hvscale.core.run_folder import write_atomically
from hvscale.prediction.replay.schedule import Enqueue, RankSchedule
from hvscale.profiling.analyze.gradients import JobGradients

SCHEMA_VERSION = "0.0.4"
COMP_NODE, COMM_COLL_NODE = 4, 7  # NodeType
ALL_REDUCE = 0  # CollectiveCommType
MOST_STEP = 2**62

Field = descriptor_pb2.FieldDescriptorProto
# By message: each field with its number, its type (a message by name), and whether it is repeated.
FIELDS: dict[str, list[tuple[str, int, Any, bool]]] = {
    "AttributeProto": [
        ("name", 1, Field.TYPE_STRING, False),
        ("int64_val", 9, Field.TYPE_INT64, False),
        ("bool_val", 27, Field.TYPE_BOOL, False),
        ("string_val", 29, Field.TYPE_STRING, False),
    ],
    "GlobalMetadata": [("version", 1, Field.TYPE_STRING, False), ("attr", 2, "AttributeProto", True)],
    "Node": [
        ("id", 1, Field.TYPE_UINT64, False),
        ("name", 2, Field.TYPE_STRING, False),
        ("type", 3, Field.TYPE_INT32, False),  # an enumeration, which has the same encoding
        ("data_deps", 5, Field.TYPE_UINT64, True),
        ("start_time_micros", 6, Field.TYPE_UINT64, False),
        ("duration_micros", 7, Field.TYPE_UINT64, False),
        ("attr", 10, "AttributeProto", True),
    ],
}


class ChakraMessages(NamedTuple):
    """The classes of the messages."""

    attribute: Any
    metadata: Any
    node: Any

    def attributes(self, values: dict[str, bool | int | str]) -> list[Any]:
        """Attributes with these values; integers as int64, which Chakra's feeder expects."""
        fields: dict[type, str] = {bool: "bool_val", int: "int64_val", str: "string_val"}
        texts = {name: utf8(value) if isinstance(value, str) else value for name, value in values.items()}
        return [self.attribute(**{"name": name, fields[type(value)]: value}) for name, value in texts.items()]


def utf8(text: str) -> str:
    """Text that protobuf accepts: a byte of a file name that is not UTF-8 becomes its escape."""
    return text.encode(errors="backslashreplace").decode()


@cache
def chakra_messages() -> ChakraMessages:
    """Make the classes, in a pool of their own: Chakra's package may be loaded beside them."""
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    for message, fields in FIELDS.items():
        described = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
            field = described.field.add(name=name, number=number, label=label)
            if isinstance(kind, str):
                field.type, field.type_name = Field.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
            else:
                field.type = kind
            if name.endswith("_val"):
                field.oneof_index = 0
        if message == "AttributeProto":
            described.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}") for name in FIELDS)
    return ChakraMessages(*map(message_factory.GetMessageClass, found))


def parse_steps(text: str | None, numbers: list[int]) -> list[int]:
    """Return those of a recording's steps that `text` names: 5, or 1-10. None: all.

    Raises RequestError for other text, or if no such step was recorded.
    """
    if text is None:
        return numbers
    first, _, last = text.partition("-")
    limits = [read_whole(part, 0, MOST_STEP) for part in (first, last or first)]
    if None in limits:
        raise RequestError(f"--steps {text}: not a step or a range of steps; example: 1-10")
    chosen = [number for number in numbers if (limits[0] or 0) <= number <= (limits[1] or 0)]
    if not chosen:
        raise RequestError(f"--steps {text}: the recording has steps {numbers[0]} to {numbers[-1]}")
    return chosen


def chakra_path(path: Path, rank: int) -> Path:
    """The file of a rank: FILE.RANK.et, where Chakra's tools and ASTRA-sim look for it.

    Raises RequestError if `path` has no file name.
    """
    if path.name in ("", ".."):
        raise RequestError(f"--chakra {path}: give a file name; example: job")
    return path.with_name(f"{path.name.removesuffix('.et')}.{rank}.et")


def write_chakra(
    gradients: JobGradients, numbers: Sequence[int], path: Path, run: str, ranks: Collection[int] | None = None
) -> list[Path]:
    """Write the steps `numbers`, one after the other, and return a file for each of `ranks`
    (None: all recorded ones).

    Raises RequestError when a file cannot be written.
    """
    paths = []
    for position, rank in enumerate(gradients.ranks):
        number = rank.recording.header.rank
        if ranks is not None and number not in ranks:
            continue
        about: dict[str, bool | int | str] = {"writer": "hvscale", "run": run, "np": gradients.size, "rank": number}
        about["recorded"] = gradients.basis or "gradients"
        paths.append(chakra_path(path, number))
        _write_rank(paths[-1], about, RankTrace(gradients, position, numbers))
    return paths


def _write_rank(path: Path, about: dict[str, bool | int | str], trace: "RankTrace") -> None:
    def write(stream: IO[bytes]) -> None:
        made = chakra_messages()
        head = made.metadata(version=SCHEMA_VERSION, attr=made.attributes(about))
        for message in chain([head], trace.nodes()):
            serialize_length_prefixed(message, stream)

    try:
        write_atomically(path, write)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


class RankTrace:
    """The nodes of one rank: its computation in sequence, and an all-reduce for each gradient.

    An all-reduce depends on the computation that enqueued it; the computation after a wait depends
    on the all-reduces that the rank waited for. Waits are no nodes: they follow from these.
    """

    def __init__(self, gradients: JobGradients, position: int, numbers: Sequence[int]) -> None:
        self.gradients, self.numbers = gradients, numbers
        self.source = gradients.ranks[position]
        self.schedule = RankSchedule(gradients, position)
        self.made = chakra_messages()
        self.count = 0
        self.before: list[int] = []  # what the next node depends on
        self.computed = 0.0  # seconds of computation so far
        self.computed_micros = 0  # of those, in nodes: durations are rounded without drift

    def nodes(self) -> Iterator[Any]:
        """The nodes in the order of their ids; each depends on earlier ones only."""
        start = 0.0
        for number in self.numbers:
            step = self.source.steps[number]
            schedule = self.schedule.schedule(step)
            begin = done = 0.0  # after the last wait: when it ended, and computation since then
            waits = zip(step.begins.tolist(), step.blocked.tolist(), strict=True)
            handles: deque[list[int]] = deque()
            for action in schedule.actions:
                yield from self._computation(number, start + begin + done, action.seconds - done)
                done = max(done, action.seconds)
                if isinstance(action, Enqueue):
                    handles.append([])
                    for tensor in action.tensors:
                        handles[-1].append(self.count)
                        yield self._all_reduce(number, start + begin + done, tensor)
                else:
                    self._wait(handles, action.handles)
                    begin, done = sum(next(waits)), 0.0
            yield from self._computation(number, start + begin + done, schedule.compute_seconds - done)
            self._wait(handles, len(handles))
            start += step.seconds

    def _wait(self, handles: deque[list[int]], count: int) -> None:
        """Let the next node depend on the tensors of the `count` oldest handles."""
        for _ in range(min(count, len(handles))):
            self.before += handles.popleft()

    def _computation(self, step: int, start: float, seconds: float) -> Iterator[Any]:
        self.computed += max(0.0, seconds)
        duration = round(self.computed * 1e6) - self.computed_micros
        if duration > 0:
            self.computed_micros += duration
            node = self._node("computation", COMP_NODE, step, start, {})
            node.duration_micros = duration
            self.before = [node.id]
            yield node

    def _all_reduce(self, step: int, start: float, number: int) -> Any:
        tensor = self.gradients.tensors[number]
        group = {"pg_name": str(tensor.process_set)} if tensor.process_set else {}
        about = {"comm_type": ALL_REDUCE, "comm_size": tensor.bytes, "dtype": tensor.dtype, **group}
        return self._node(tensor.name, COMM_COLL_NODE, step, start, about)

    def _node(self, name: str, kind: int, step: int, start: float, about: dict[str, Any]) -> Any:
        # ASTRA-sim refuses communication with is_cpu_op.
        attributes = self.made.attributes({"is_cpu_op": False, **about, "step": step})
        micros = round(max(0.0, start) * 1e6)
        node = self.made.node(
            id=self.count, name=utf8(name), type=kind, data_deps=self.before, start_time_micros=micros, attr=attributes
        )
        self.count += 1
        return node
