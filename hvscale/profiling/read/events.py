"""What a source of profiles hands on: every message of a run, in columns; and the list of sources."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.counters import Totals


@dataclass(frozen=True)
class Events:
    """The messages of a run: arrays of one length n, in no particular order.

    Those from `communicators` on are empty unless details were asked for and the source knows them.
    """

    operations: tuple[str, ...]  # names; `operation` is an index into them
    rank: NDArray[np.int32]
    operation: NDArray[np.uint8]
    bytes: NDArray[np.int64]
    start_ns: NDArray[np.int64]  # since 1970, by rank 0's clock where `Recording.clock_error_ns` names the rank
    duration_ns: NDArray[np.int64]
    communicator_size: NDArray[np.int32]
    bitwise: NDArray[np.bool_]  # the reduction is a bitwise one
    thread: NDArray[np.integer[Any]]  # that called, numbered from 0 within its rank; 0 where the source does not tell
    communicators: tuple[int, ...] = ()  # identities, over all ranks; `communicator` is an index into them
    communicator: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    # The rank's n-th collective of the communicator, from 0, modulo 2^32.
    ordinal: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    # The address of the rank's own part; 0: the call has none.
    buffer: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    def __len__(self) -> int:
        return len(self.rank)


# What a message that Horovod makes goes through, in this order; `other` is the rest of its operation, such as allocating the output.
PHASES = ("negotiation", "queueing", "copy_in", "communication", "copy_out", "other")


@dataclass(frozen=True)
class HorovodMessages:
    """The messages of Horovod's timeline, as its rank 0 saw them: arrays of one length n."""

    operations: tuple[str, ...]
    operation: NDArray[np.uint8]
    bytes: NDArray[np.int64]
    sized: NDArray[np.bool_]  # the timeline names the size of all its tensors
    tensors: NDArray[np.int64]  # of more than one: they were fused
    phases_ns: NDArray[np.int64]  # (n, PHASES)


Times = NDArray[np.int64]
Threads = NDArray[np.int64]


@dataclass(frozen=True)
class Recording:
    """The messages of a run, and how far they speak for the whole of it."""

    source: str
    events: Events
    np: int  # ranks of the job
    ranks: list[int]  # ranks that were recorded
    ranks_per_event: int = 1  # a source that sees one rank only counts its messages for all of them
    overwritten: int = 0
    warnings: list[str] = field(default_factory=list)
    incomplete: str | None = (
        None  # why messages of the job are missing here; what is missing must not count as not sent
    )
    # Exact sums over all calls, where single events are missing from `events`.
    totals: Totals | None = None
    point_to_point: Totals | None = None
    # By rank: when it marked a step, ascending, on the clock of `start_ns`.
    steps: dict[int, Times] = field(default_factory=dict)
    # By rank, as long as its `steps`: the thread that marked each, numbered as in `Events.thread`.
    step_threads: dict[int, Threads] = field(default_factory=dict)
    # By rank: how far its clock may be off from rank 0's; None where that was not measured.
    clock_error_ns: dict[int, int | None] = field(default_factory=dict)
    # Of a source that is Horovod's timeline, with details.
    horovod: HorovodMessages | None = None
    # What the ranks ran on, by name.
    library: str = ""


def no_events() -> Events:
    return Events(
        operations=(),
        rank=np.empty(0, np.int32),
        operation=np.empty(0, np.uint8),
        bytes=np.empty(0, np.int64),
        start_ns=np.empty(0, np.int64),
        duration_ns=np.empty(0, np.int64),
        communicator_size=np.empty(0, np.int32),
        bitwise=np.empty(0, np.bool_),
        thread=np.empty(0, np.int64),
    )


# A source answers None when the run holds nothing of its kind.
Source = Callable[[RunFolder], Recording | None]
SOURCES: dict[str, Source] = {}
DETAILED: dict[str, Source] = {}  # those that also load the details, which a table needs no memory for


def source(name: str, detail: bool = False) -> Callable[[Source], Source]:
    """Registers a reader under the name that stands in a breakdown's `source`."""

    def register(read: Source) -> Source:
        (DETAILED if detail else SOURCES)[name] = read
        return read

    return register
