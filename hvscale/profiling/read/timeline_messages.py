"""The messages of a Horovod timeline, packed; those of a long timeline are in a temporary file."""

import tempfile
import weakref
from collections.abc import Iterator
from functools import cached_property
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.profiling.read.events import BLOCK, PHASES, Events, EventSource, HorovodMessages, Part

OPERATIONS = ("allreduce", "allgather", "broadcast", "alltoall", "reduce-scatter", "reduce")
MESSAGE = np.dtype(
    [
        ("operation", np.uint8),
        ("sized", np.bool_),
        ("tensors", np.int64),
        ("bytes", np.int64),
        ("start_us", np.int64),
        ("end_us", np.int64),
        ("phases_us", np.int64, len(PHASES)),
    ]
)
MAX_IN_MEMORY_BYTES = 64 << 20
PackedMessage = tuple[int, bool, int, int, int, int, tuple[int, ...]]


class TimelineEvents(EventSource):
    """The messages as rank 0 saw them, in the order in which they were appended.

    `start_us`: when the timeline began, since 1970.
    """

    operations = OPERATIONS
    communicators = ()
    detailed = False

    def __init__(self, np_of_job: int) -> None:
        self.np_of_job, self.start_us = np_of_job, 0
        self._file = tempfile.SpooledTemporaryFile(MAX_IN_MEMORY_BYTES)  # noqa: SIM115 (open as long as the messages)
        weakref.finalize(self, self._file.close)
        self._lock = Lock()
        self._unpacked: list[PackedMessage] = []
        self._count = 0
        self._times: list[tuple[int, int, int, int]] = []

    def append(self, message: PackedMessage) -> None:
        """Adds a message with the fields of MESSAGE. Raises RequestError without space for it."""
        self._unpacked.append(message)
        if len(self._unpacked) == BLOCK:
            self.pack()

    def pack(self) -> None:
        """Must follow the last `append`."""
        if not self._unpacked:
            return
        messages = np.array(self._unpacked, MESSAGE)
        self._unpacked = []
        start, end = messages["start_us"], np.maximum(messages["start_us"], messages["end_us"])
        self._times.append((len(messages), int(start.min()), int(start.max()), int(end.max())))
        self._count += len(messages)
        try:
            with self._lock:
                self._file.seek(0, 2)
                self._file.write(messages.tobytes())
        except OSError as error:
            raise RequestError(
                f"the messages of Horovod's timeline need temporary space in {tempfile.gettempdir()}: {error.strerror}. "
                "Set TMPDIR to a larger folder"
            ) from error

    @cached_property
    def parts(self) -> list[Part]:
        return [_TimelinePart(self)] if self._count else []

    def __len__(self) -> int:
        return self._count

    def records(self, first: int, count: int) -> NDArray[np.void]:
        """The messages, of dtype MESSAGE, from number `first` on."""
        with self._lock:
            self._file.seek(first * MESSAGE.itemsize)
            raw = self._file.read(max(0, min(count, self._count - first)) * MESSAGE.itemsize)
        return np.frombuffer(raw, MESSAGE)

    def times(self) -> NDArray[np.int64]:
        found = np.array(self._times, np.int64).reshape(-1, 4)
        found[:, 1:] = (found[:, 1:] + self.start_us) * 1000
        return found

    def horovod_messages(self) -> Iterator[HorovodMessages]:
        """The messages with their tensors and phases, a block at a time."""
        for first in range(0, self._count, BLOCK):
            records = self.records(first, BLOCK)
            yield HorovodMessages(
                operations=OPERATIONS,
                operation=records["operation"],
                bytes=records["bytes"],
                sized=records["sized"],
                tensors=records["tensors"],
                phases_ns=records["phases_us"] * 1000,
            )


class _TimelinePart(Part):
    """Rank 0, the only one that writes a timeline."""

    def __init__(self, events: TimelineEvents) -> None:
        self._events, self.rank, self.slots = events, 0, len(events)
        self.communicators, self.sizes = np.empty((2, 0), np.int64)
        self.ordinals = np.empty((0, 2), np.int64)

    def read(self, first: int, count: int, detail: bool) -> Events:
        del detail
        records = self._events.records(first, count)
        zeros, np_of_job = np.zeros(len(records), np.int64), self._events.np_of_job
        return Events(
            operations=OPERATIONS,
            rank=zeros.astype(np.int32),
            operation=records["operation"],
            bytes=records["bytes"],
            start_ns=(records["start_us"] + self._events.start_us) * 1000,
            duration_ns=np.maximum(records["end_us"] - records["start_us"], 0) * 1000,
            communicator_size=np.full(len(records), np_of_job, np.int32),
            bitwise=zeros.astype(np.bool_),  # negotiation has its own events in a timeline
            thread=zeros,
        )

    def times(self) -> NDArray[np.int64]:
        return self._events.times()
