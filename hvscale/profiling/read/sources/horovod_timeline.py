"""Horovod's timeline, for messages that no MPI profile can see: Gloo is linked into Horovod with
hidden symbols.

Facts, of Horovod 0.28.1 (common/timeline.cc, common/ops): every tensor is a `pid`; the activity
GLOO_ALLREDUCE (or the like) begins for each tensor of a fused message, then ends for each, and the
call itself lies between the last begin and the first end; the type and shape stand in the event
that ends the tensor's whole operation. Rank 0 alone writes. The closing bracket is rewritten after
each event, so a file of a job that died ends anywhere.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.documents import parse_json
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.events import PHASES, SOURCES, Events, HorovodMessages, Recording, Source
from hvscale.profiling.read.horovod_stages import NEGOTIATION, PHASE_OF_ACTIVITY, Span, Stages

OPERATIONS = ("allreduce", "allgather", "broadcast", "alltoall", "reduce-scatter", "reduce")
ACTIVITY = re.compile(r"(?:GLOO|MPI|NCCL|CCL)_(?:ADASUM_)?(ALLREDUCE|ALLGATHER|BCAST|ALLTOALL|REDUCESCATTER|REDUCE)")
OPERATION_OF_ACTIVITY = dict(
    zip(("ALLREDUCE", "ALLGATHER", "BCAST", "ALLTOALL", "REDUCESCATTER", "REDUCE"), range(len(OPERATIONS)), strict=True)
)
TYPE_BYTES = {
    **{"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2},
    **{"int32": 4, "float32": 4, "int64": 8, "float64": 8},
}
BETWEEN_EVENTS = re.compile(r"(?<=\})\s*,\s*(?=\{\")")
CHUNK_CHARACTERS = 1 << 22
LATEST_US = 1 << 52  # a year after 140 000: whatever lies beyond is damage


@dataclass
class Message:
    """One call, and the tensors that were fused into it."""

    operation: int
    start_us: int = 0
    end_us: int | None = None
    tensors: set[int] = field(default_factory=set)
    closed: int = 0  # tensors whose operation has ended
    sized: int = 0  # of these: those whose size was named
    bytes: int = 0
    stages: Stages | None = None  # where details are asked for


def _microseconds(value: int) -> int:
    if not 0 <= value <= LATEST_US:
        raise ValueError(value)
    return int(value)


def read_messages(run: RunFolder) -> HorovodMessages | None:
    """The messages of a run's timeline, in addition to another source's; None without a timeline.
    Raises as `read` does.
    """
    timeline = _timeline(run, detail=True)
    return None if timeline is None else timeline.horovod_messages(run.read().np)


def _timeline(run: RunFolder, detail: bool) -> "Timeline | None":
    if not run.timeline.is_file():
        return None
    timeline = Timeline(detail)
    try:
        with run.timeline.open(encoding="utf-8", errors="replace") as stream:
            timeline.read(stream)
    except OSError as error:
        raise RequestError(f"{run.timeline} cannot be read: {error.strerror}") from error
    if timeline.damaged and not timeline.understood:
        raise RequestError(f"{run.timeline} is not a timeline that Horovod wrote")
    return timeline


def read(run: RunFolder, detail: bool = False) -> Recording | None:
    """Reads the run's timeline; with `detail` also `Recording.horovod`. Raises RequestError if it
    is not a readable timeline.
    """
    timeline = _timeline(run, detail)
    if timeline is None:
        return None
    np_of_job = run.read().np
    warnings = [
        f"Horovod writes its timeline on rank 0 only: the times are rank 0's, and its calls, bytes and seconds count "
        f"for each of the {np_of_job} ranks"
    ]
    if timeline.damaged:
        warnings.append(f"{run.timeline}: {timeline.damaged} events are truncated or damaged, and left out")
    unsized = Counter(
        OPERATIONS[message.operation] for message in timeline.messages if message.sized < len(message.tensors)
    )
    if unsized:
        which = ", ".join(f"{count} of {operation}" for operation, count in unsized.items())
        warnings.append(f"Horovod's timeline has no size for some messages ({which}): they count 0 bytes")
    return Recording(
        "horovod-timeline",
        timeline.events(np_of_job),
        np_of_job,
        [0],
        np_of_job,
        warnings=warnings,
        horovod=timeline.horovod_messages(np_of_job) if detail else None,
    )


# The only source under Gloo; elsewhere the others record every rank.
SOURCES.register("horovod-timeline", Source(priority=10, read=read))


class Timeline:
    """Reads events in the order in which they were written and puts messages together; `detail`:
    with the phases of each.
    """

    def __init__(self, detail: bool = False) -> None:
        self.detail = detail
        self.messages: list[Message] = []  # those whose call has ended
        self.understood = 0
        self.damaged = 0
        self.start_us = 0
        # Of each tensor: what has begun, when, and not ended.
        self._open: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        self._forming: dict[str, Message] = {}  # of each activity: the message that tensors may still join
        self._running: dict[int, Message] = {}  # of each tensor: the message it is in
        self._closing: defaultdict[int, list[Message]] = defaultdict(list)
        self._negotiated: dict[int, Span] = {}
        self._activities: defaultdict[int, list[tuple[str, Span]]] = defaultdict(list)

    def read(self, stream: IO[str]) -> None:
        for event in self._decoded(stream):
            try:
                self._take(event)
                self.understood += 1
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                self.damaged += 1

    def _decoded(self, stream: IO[str]) -> Iterator[Any]:
        rest = ""
        first = True
        while piece := stream.read(CHUNK_CHARACTERS):
            rest += piece
            if first:
                rest, first = rest.lstrip().removeprefix("["), False
            cut = max(rest.rfind('},{"'), rest.rfind('},\n{"'))
            if cut >= 0:
                yield from self._decode(rest[: cut + 1])
                rest = rest[cut + 1 :].lstrip(", \n")
            elif len(rest) > 8 * CHUNK_CHARACTERS:
                self.damaged += 1
                if not self.understood:  # of another kind, and maybe without an end
                    return
                rest = ""
        # The end: a bracket, a comma before an event that never came, or half an event.
        yield from self._decode(rest.rstrip("] \n\r\t,"))

    def _decode(self, text: str) -> Iterator[Any]:
        if not text:
            return
        try:
            yield from parse_json(f"[{text}]")
        except (ValueError, RecursionError):
            # Horovod does not escape tensor names, and a disk may have filled up: give up single
            # events only.
            for event in BETWEEN_EVENTS.split(text):
                try:
                    yield parse_json(event)
                except (ValueError, RecursionError):
                    self.damaged += 1

    def _take(self, event: dict[str, Any]) -> None:
        phase = event["ph"]
        if phase == "B":
            self._begin(event["pid"], event["name"], _microseconds(event["ts"]))
        elif phase == "E":
            self._end(event["pid"], _microseconds(event["ts"]), event.get("args", {}))
        elif phase == "M" and event["pid"] == 0:
            self.start_us = _microseconds(event["args"].get("start_time_since_epoch_in_micros", self.start_us))

    def _begin(self, tensor: int, name: str, time_us: int) -> None:
        self._open[tensor].append((name, time_us))
        activity = ACTIVITY.fullmatch(name)
        if activity is None:
            return
        message = self._forming.get(name)
        if message is None or message.end_us is not None or tensor in message.tensors:
            message = self._forming[name] = Message(OPERATION_OF_ACTIVITY[activity[1]])
            message.stages = Stages() if self.detail else None
        message.start_us = time_us
        message.tensors.add(tensor)
        self._running[tensor] = message
        self._closing[tensor].append(message)

    def _end(self, tensor: int, time_us: int, attributes: dict[str, Any]) -> None:
        begun = self._open[tensor]
        if not begun:
            return
        name, begin_us = begun.pop()
        if self.detail and name in PHASE_OF_ACTIVITY:
            self._activities[tensor].append((PHASE_OF_ACTIVITY[name], (begin_us, time_us)))
        if ACTIVITY.fullmatch(name) and tensor in self._running:
            message = self._running.pop(tensor)
            if message.end_us is None:
                message.end_us = time_us
                self.messages.append(message)
        if not begun:
            waiting = self._closing.pop(tensor, [])
            for message in waiting:
                message.closed += 1
            if self.detail:
                self._stage(tensor, name, (begin_us, time_us), waiting[0].stages if waiting else None)
            if "shape" in attributes:
                size = TYPE_BYTES[attributes["dtype"]] * prod(map(int, re.findall(r"\d+", attributes["shape"])))
                for message in waiting:
                    message.sized += 1
                    message.bytes += size

    def _stage(self, tensor: int, name: str, span: Span, stages: Stages | None) -> None:
        """Gives what a tensor went through to its message; of an operation of several messages, to
        the first.
        """
        if name.startswith(NEGOTIATION):
            self._negotiated[tensor] = span
            return
        negotiated, activities = self._negotiated.pop(tensor, None), self._activities.pop(tensor, [])
        if stages is not None:
            stages.add(negotiated, span, activities)

    def whole(self) -> list[Message]:
        """The messages that are told to their end: Horovod drops the events that its writer has not
        reached when it shuts down.
        """
        return [message for message in self.messages if message.closed == len(message.tensors)]

    def events(self, np_of_job: int) -> Events:
        """The messages as rank 0 saw them."""
        messages = self.whole()
        operation = np.array([message.operation for message in messages], np.uint8)
        start_us = np.array([message.start_us for message in messages], np.int64)
        end_us = np.array([message.end_us for message in messages], np.int64)
        return Events(
            operations=OPERATIONS,
            rank=np.zeros(len(messages), np.int32),
            operation=operation,
            bytes=_sizes(messages, np_of_job),
            start_ns=(self.start_us + start_us) * 1000,
            duration_ns=np.maximum(end_us - start_us, 0) * 1000,
            communicator_size=np.full(len(messages), np_of_job, np.int32),
            bitwise=np.zeros(len(messages), np.bool_),  # what ranks agree on beforehand stands apart in a timeline
            thread=np.zeros(len(messages), np.int64),
        )

    def horovod_messages(self, np_of_job: int) -> HorovodMessages:
        """The same messages with their tensors and phases, which are there when the timeline was
        read in detail.
        """
        messages = self.whole()
        phases_us = [
            message.stages.phases_us(max(0, (message.end_us or 0) - message.start_us), LATEST_US)
            for message in messages
            if message.stages is not None
        ]
        return HorovodMessages(
            operations=OPERATIONS,
            operation=np.array([message.operation for message in messages], np.uint8),
            bytes=_sizes(messages, np_of_job),
            sized=np.array([message.sized == len(message.tensors) for message in messages], np.bool_),
            tensors=np.array([len(message.tensors) for message in messages], np.int64),
            phases_ns=np.array(phases_us, np.int64).reshape(-1, len(PHASES)) * 1000,
        )


def _sizes(messages: list[Message], np_of_job: int) -> NDArray[np.int64]:
    """Bytes of each message's whole buffer: a reduce-scatter's tensors are one rank's part."""
    whole = OPERATIONS.index("reduce-scatter")
    largest = 2**63 // (np_of_job + 1)  # whatever a damaged file says
    return np.array(
        [min(message.bytes, largest) * (np_of_job if message.operation == whole else 1) for message in messages],
        np.int64,
    )
