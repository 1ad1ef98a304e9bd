"""Reads Horovod's timeline, the only profile under Gloo: Horovod links Gloo with hidden symbols, so
hvprof cannot wrap its calls.

The timeline of Horovod 0.28.1 (common/timeline.cc, common/ops):

- Each tensor has its own `pid`. Only rank 0 writes.
- For a fused message, an activity such as GLOO_ALLREDUCE begins for each tensor, then ends for
  each. The call runs from the last begin to the first end.
- The event that ends a tensor's operation holds its data type and shape.
- Horovod rewrites the closing bracket after each event, so the file of a dead job may end anywhere.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import IO, Any

from hvscale.core.documents import parse_json
from hvscale.core.errors import RequestError
from hvscale.core.progress import Progress
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.events import PHASES, SOURCES, HorovodMessages, ProfileSource, Recording, Reducer
from hvscale.profiling.read.passes import reduce_messages
from hvscale.profiling.read.timeline_messages import OPERATIONS, TimelineEvents

ACTIVITY = re.compile(r"(?:GLOO|MPI|NCCL|CCL)_(?:ADASUM_)?(ALLREDUCE|ALLGATHER|BCAST|ALLTOALL|REDUCESCATTER|REDUCE)")
OPERATION_OF_ACTIVITY = dict(
    zip(("ALLREDUCE", "ALLGATHER", "BCAST", "ALLTOALL", "REDUCESCATTER", "REDUCE"), range(len(OPERATIONS)), strict=True)
)
TYPE_BYTES = {
    **{"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2},
    **{"int32": 4, "float32": 4, "int64": 8, "float64": 8},
}
BETWEEN_EVENTS = re.compile(r"(?<=\})\s*,\s*(?=\{\")")
CHUNK_CHARACTERS = 1 << 20
MAX_US = 1 << 52  # beyond the year 140 000: a later time is damage
MAX_OPEN = 2  # events of a tensor: its operation, and an activity of that
NEGOTIATION = "NEGOTIATE_"
QUEUEING, COPY_IN, COPY_OUT = "queueing", "copy_in", "copy_out"
PHASE_OF_ACTIVITY = {
    **dict.fromkeys(("QUEUE", "WAIT_FOR_DATA", "WAIT_FOR_OTHER_TENSOR_DATA"), QUEUEING),
    **dict.fromkeys(("MEMCPY_IN_FUSION_BUFFER", "MEMCPY_IN_HOST_BUFFER"), COPY_IN),
    **dict.fromkeys(("MEMCPY_OUT_FUSION_BUFFER", "MEMCPY_OUT_HOST_BUFFER"), COPY_OUT),
}
Span = tuple[int, int]  # begin and end, microseconds


@dataclass
class PhaseSpans:
    """The spans of a message's tensors, one for each tensor in each list.

    Fused tensors go through an activity together: it begins for each tensor, then ends for each. So
    their spans count as one, not as a sum.
    """

    negotiations: list[Span] = field(default_factory=list)
    operations: list[Span] = field(default_factory=list)
    activities: defaultdict[tuple[str, int], list[Span]] = field(default_factory=lambda: defaultdict(list))

    def add_tensor(self, negotiation: Span | None, operation: Span, activities: list[tuple[str, Span]]) -> None:
        """Adds the spans of one tensor; `activities` are the phases of its operation, in order."""
        self.operations.append(operation)
        if negotiation is not None:
            self.negotiations.append(negotiation)
        occurrences: Counter[str] = Counter()
        for phase, span in activities:
            self.activities[phase, occurrences[phase]].append(span)
            occurrences[phase] += 1

    def phases_us(self, communication_us: int, max_us: int) -> list[int]:
        """The duration of each of PHASES, at most `max_us` each.

        Negotiation runs from the first tensor's begin to the last tensor's end. Queueing includes
        the time between negotiation and operation.
        """
        spent = dict.fromkeys(PHASES, 0)
        spent["communication"] = communication_us
        for (phase, _), spans in self.activities.items():
            spent[phase] += _length(_overlap(spans))
        if self.operations:
            begin, end = _bounding_span(self.operations)
            spent["other"] = max(0, end - begin - sum(spent.values()))
            if self.negotiations:
                negotiation = _bounding_span(self.negotiations)
                spent["negotiation"] = _length(negotiation)
                spent[QUEUEING] += _length((negotiation[1], begin))
        return [min(spent[phase], max_us) for phase in PHASES]


def _overlap(spans: list[Span]) -> Span:
    return max(begin for begin, _ in spans), min(end for _, end in spans)


def _bounding_span(spans: list[Span]) -> Span:
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def _length(span: Span) -> int:
    return max(0, span[1] - span[0])


@dataclass
class Message:
    """One call, and the tensors that Horovod fused into it."""

    operation: int
    start_us: int = 0
    end_us: int | None = None
    tensors: set[int] = field(default_factory=set)
    ended: int = 0  # tensors whose operation has ended
    sized: int = 0  # ended tensors whose size the timeline has
    bytes: int = 0
    spans: PhaseSpans = field(default_factory=PhaseSpans)


def _microseconds(value: int) -> int:
    if not 0 <= value <= MAX_US:
        raise ValueError(value)
    return int(value)


@lru_cache(256)
def _operation(activity: str) -> int | None:
    """The operation of a call, as an index into OPERATIONS; None for another activity."""
    match = ACTIVITY.fullmatch(activity)
    return None if match is None else OPERATION_OF_ACTIVITY[match[1]]


def read_messages(run: RunFolder) -> Iterator[HorovodMessages] | None:
    """Reads the messages in a run's timeline, next to another source; None without a timeline.

    Raises as `read` does.
    """
    timeline = _read_timeline(run)
    return None if timeline is None else timeline.events.horovod_messages()


def _read_timeline(run: RunFolder) -> "Timeline | None":
    if not run.timeline.is_file():
        return None
    timeline = Timeline(run.read().np)
    try:
        with run.timeline.open(encoding="utf-8", errors="replace") as stream:
            timeline.read(stream, run.timeline.stat().st_size)
    except OSError as error:
        raise RequestError(f"{run.timeline} cannot be read: {error.strerror}") from error
    if timeline.damaged and not timeline.valid:
        raise RequestError(f"{run.timeline} is not a timeline that Horovod wrote")
    return timeline


def read(
    run: RunFolder, reducers: Sequence[Reducer[Any]] = (), ranks: Collection[int] | None = None
) -> Recording | None:
    """Reads the run's timeline, which is rank 0's; None without a timeline.

    Raises RequestError if the file is not a readable timeline.
    """
    del ranks
    timeline = _read_timeline(run)
    if timeline is None:
        return None
    np_of_job = run.read().np
    warnings = [
        f"Horovod writes its timeline on rank 0 only: all times are rank 0's, and its calls, bytes and seconds are "
        f"multiplied by the {np_of_job} ranks, which is too much for messages of a process set"
    ]
    if timeline.damaged:
        warnings.append(f"{run.timeline}: {timeline.damaged} events are truncated or damaged and were skipped")
    if timeline.unsized:
        which = ", ".join(f"{count} of {OPERATIONS[operation]}" for operation, count in timeline.unsized.items())
        warnings.append(f"Horovod's timeline has no size for some messages ({which}), which count 0 bytes")
    reduce_messages(timeline.events, *reducers)
    return Recording(
        "horovod-timeline",
        timeline.events,
        np_of_job,
        [0],
        np_of_job,
        warnings=warnings,
        horovod=timeline.events.horovod_messages,
    )


# The only source under Gloo. Under MPI and NCCL, the other sources record every rank.
SOURCES.register("horovod-timeline", ProfileSource(priority=10, read=read))


class Timeline:
    """Assembles messages from the events of a timeline, in the order of the file.

    Holds only unfinished messages. `events`: those whose events are all there. At shutdown Horovod
    drops the events that it has not yet written.
    """

    def __init__(self, np_of_job: int) -> None:
        self.events = TimelineEvents(np_of_job)
        self.valid = 0  # events
        self.damaged = 0  # events
        self.unsized: Counter[int] = Counter()  # messages without the size of every tensor, by operation
        self._np_of_job = np_of_job
        self._max_bytes = 2**63 // (np_of_job + 1)  # a damaged file may claim more
        # By tensor: name and begin of each event that has not ended.
        self._open: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        self._forming: dict[str, Message] = {}  # by activity: the message that more tensors may join
        self._running: dict[int, Message] = {}  # by tensor: its message
        self._unfinished: defaultdict[int, list[Message]] = defaultdict(list)  # by tensor
        self._negotiations: dict[int, Span] = {}  # by tensor
        self._activities: defaultdict[int, list[tuple[str, Span]]] = defaultdict(list)

    def read(self, stream: IO[str], size: int = 0) -> None:
        """Reads a whole timeline; `size`: its bytes, for the progress.

        Raises RequestError without temporary space for the messages.
        """
        for event in self._decoded(stream, size):
            try:
                self._handle(event)
                self.valid += 1
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                self.damaged += 1
        self.events.pack()

    def _decoded(self, stream: IO[str], size: int) -> Iterator[Any]:
        rest = ""
        first = True
        with Progress("reading Horovod's timeline", size) as progress:
            while piece := stream.read(CHUNK_CHARACTERS):
                progress.advance(len(piece))
                rest += piece
                if first:
                    rest, first = rest.lstrip().removeprefix("["), False
                cut = max(rest.rfind('},{"'), rest.rfind('},\n{"'))
                if cut >= 0:
                    yield from self._decode(rest[: cut + 1])
                    rest = rest[cut + 1 :].lstrip(", \n")
                elif len(rest) > 8 * CHUNK_CHARACTERS:
                    self.damaged += 1
                    if not self.valid:  # another kind of file, which may never end
                        return
                    rest = ""
            # The file ends with a bracket, with a comma, or within an event.
            yield from self._decode(rest.rstrip("] \n\r\t,"))

    def _decode(self, text: str) -> Iterator[Any]:
        if not text:
            return
        try:
            yield from parse_json(f"[{text}]")
        except (ValueError, RecursionError):
            # Horovod does not escape tensor names, and a full disk may have cut events: drop only
            # the damaged ones.
            for event in BETWEEN_EVENTS.split(text):
                try:
                    yield parse_json(event)
                except (ValueError, RecursionError):
                    self.damaged += 1

    def _handle(self, event: dict[str, Any]) -> None:
        phase = event["ph"]
        if phase == "B":
            self._begin(event["pid"], event["name"], _microseconds(event["ts"]))
        elif phase == "E":
            self._end(event["pid"], _microseconds(event["ts"]), event.get("args", {}))
        elif phase == "M" and event["pid"] == 0:
            self.events.start_us = _microseconds(
                event["args"].get("start_time_since_epoch_in_micros", self.events.start_us)
            )

    def _begin(self, tensor: int, name: str, time_us: int) -> None:
        operation = _operation(name)
        if self._open[tensor] and (len(self._open[tensor]) == MAX_OPEN or name.startswith(NEGOTIATION)):
            self._forget(tensor)
        self._open[tensor].append((name, time_us))
        if operation is None:
            return
        message = self._forming.get(name)
        if message is None or message.end_us is not None or tensor in message.tensors:
            message = self._forming[name] = Message(operation)
        message.start_us = time_us
        message.tensors.add(tensor)
        self._running[tensor] = message
        self._unfinished[tensor].append(message)

    def _forget(self, tensor: int) -> None:
        """Drops what the tensor has begun, because the file lacks the end of an event of it."""
        for state in (self._open, self._running, self._unfinished, self._negotiations, self._activities):
            state.pop(tensor, None)

    def _end(self, tensor: int, time_us: int, attributes: dict[str, Any]) -> None:
        begun = self._open[tensor]
        if not begun:
            return
        name, begin_us = begun.pop()
        if name in PHASE_OF_ACTIVITY:
            self._activities[tensor].append((PHASE_OF_ACTIVITY[name], (begin_us, time_us)))
        if _operation(name) is not None and tensor in self._running:
            message = self._running.pop(tensor)
            if message.end_us is None:
                message.end_us = time_us
        if not begun:
            self._end_operation(tensor, name, (begin_us, time_us), attributes)

    def _end_operation(self, tensor: int, name: str, span: Span, attributes: dict[str, Any]) -> None:
        unfinished = self._unfinished.pop(tensor, [])
        for message in unfinished:
            message.ended += 1
        self._add_spans(tensor, name, span, unfinished[0].spans if unfinished else None)
        try:
            if "shape" in attributes:
                size = TYPE_BYTES[attributes["dtype"]] * prod(map(int, re.findall(r"\d+", attributes["shape"])))
                for message in unfinished:
                    message.sized += 1
                    message.bytes += size
        finally:
            for message in unfinished:
                if message.ended == len(message.tensors):
                    self._finish(message)

    def _add_spans(self, tensor: int, name: str, span: Span, spans: PhaseSpans | None) -> None:
        """Adds a tensor's spans to its message: the first one, if its operation has several."""
        if name.startswith(NEGOTIATION):
            self._negotiations[tensor] = span
            return
        negotiation, activities = self._negotiations.pop(tensor, None), self._activities.pop(tensor, [])
        if spans is not None:
            spans.add_tensor(negotiation, span, activities)

    def _finish(self, message: Message) -> None:
        if message.end_us is None:
            return
        sized = message.sized == len(message.tensors)
        if not sized:
            self.unsized[message.operation] += 1
        # The tensors of a reduce-scatter are one rank's part of the buffer.
        parts = self._np_of_job if OPERATIONS[message.operation] == "reduce-scatter" else 1
        communication_us = max(0, message.end_us - message.start_us)
        self.events.append(
            (
                message.operation,
                sized,
                len(message.tensors),
                min(message.bytes, self._max_bytes) * parts,
                message.start_us,
                message.end_us,
                tuple(message.spans.phases_us(communication_us, MAX_US)),
            )
        )
