"""The messages of a run in columns, as every profile source returns them, and the registry of
sources.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.registry import Registry
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.counters import Totals


@dataclass(frozen=True)
class Events:
    """The messages of a run: arrays of one length n, in no particular order.

    `communicators` and the fields below it are empty unless the caller requested details and the
    source has them.
    """

    operations: tuple[str, ...]  # names; `operation` is an index into them
    rank: NDArray[np.int32]
    operation: NDArray[np.uint8]
    bytes: NDArray[np.int64]
    start_ns: NDArray[np.int64]  # since 1970, by rank 0's clock where `Recording.clock_error_ns` names the rank
    duration_ns: NDArray[np.int64]
    communicator_size: NDArray[np.int32]
    bitwise: NDArray[np.bool_]  # the reduction is bitwise
    thread: NDArray[np.integer[Any]]  # number of the calling thread within its rank, from 0; 0 if unknown
    communicators: tuple[int, ...] = ()  # identities, over all ranks; `communicator` is an index into them
    communicator: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    # Number of the collective on the communicator, counted by the rank from 0, modulo 2^32.
    ordinal: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    # Address of the rank's send buffer; 0: none.
    buffer: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    def __len__(self) -> int:
        return len(self.rank)


# The phases of a Horovod message, in order; `other` is the rest of its operation, such as
# allocating the output.
PHASES = ("negotiation", "queueing", "copy_in", "communication", "copy_out", "other")


@dataclass(frozen=True)
class HorovodMessages:
    """The messages in rank 0's Horovod timeline: arrays of one length n."""

    operations: tuple[str, ...]
    operation: NDArray[np.uint8]
    bytes: NDArray[np.int64]
    sized: NDArray[np.bool_]  # the timeline has the sizes of all tensors of the message
    tensors: NDArray[np.int64]  # number of tensors; more than one if Horovod fused them
    phases_ns: NDArray[np.int64]  # (n, PHASES)


Times = NDArray[np.int64]
Threads = NDArray[np.int64]


@dataclass(frozen=True)
class Recording:
    """The messages of a run, and how complete they are."""

    source: str
    events: Events
    np: int  # ranks of the job
    ranks: list[int]  # ranks that were recorded
    ranks_per_event: int = 1  # np for a source that records one rank only
    overwritten: int = 0
    warnings: list[str] = field(default_factory=list)
    incomplete: str | None = None  # why messages are missing; comparisons reject such a recording
    # Exact sums over all calls, if `events` lacks overwritten ones.
    totals: Totals | None = None
    point_to_point: Totals | None = None
    # By rank: the times of its step marks, ascending, on the clock of `Events.start_ns`.
    steps: dict[int, Times] = field(default_factory=dict)
    # By rank: the thread that made each of its step marks, numbered as in `Events.thread`.
    step_threads: dict[int, Threads] = field(default_factory=dict)
    # By rank: the error of its clock's offset from rank 0's; None if not measured.
    clock_error_ns: dict[int, int | None] = field(default_factory=dict)
    # Only from Horovod's timeline, with details.
    horovod: HorovodMessages | None = None
    # The MPI library that the ranks ran on.
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


@dataclass(frozen=True)
class Source:
    """A kind of profile and its reader."""

    # If a run has several kinds of profiles, the breakdown uses the one with the highest priority.
    priority: int
    # Returns None if the run has no profile of this kind. True also loads the details of each
    # event, which take memory and which a table does not need.
    read: Callable[[RunFolder, bool], Recording | None]


# By the name in a breakdown's `source`.
SOURCES: Registry[Source] = Registry("profile source", "hvscale.profiling.read.sources")


def sources_by_priority() -> list[Source]:
    return sorted(SOURCES.all().values(), key=lambda source: -source.priority)
