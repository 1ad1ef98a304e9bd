"""The messages of a run in columns, as every profile source returns them, and the registry of
sources.

A run may have more messages than memory, so nobody needs to hold all of them: a source has a part
for each recorded process, and reads any piece of a part.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hvscale.core.registry import Registry
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.counters import Totals
from hvscale.profiling.read.profile_file import StepSums

NO_ORDINAL = 1 << 62
BLOCK = 1 << 14  # messages; a part knows the times of each of its blocks


class Part(ABC):
    """The messages of one process, roughly in order of time.

    `slots`: places for messages; damaged or empty ones hold none. `communicators`: those that the
    process belongs to, as indices into `EventSource.communicators`. `sizes`: their ranks.
    `ordinals`: the first and last ordinal on each of them, (n, 2); NO_ORDINAL and -1 without any.
    """

    rank: int
    slots: int
    communicators: NDArray[np.int64]
    sizes: NDArray[np.int64]
    ordinals: NDArray[np.int64]

    @abstractmethod
    def read(self, first: int, count: int, detail: bool) -> "Events":
        """The messages in `count` slots from number `first` on; `detail` as in `Events`."""

    @abstractmethod
    def times(self) -> NDArray[np.int64]:
        """For each BLOCK of slots: messages, first start, last start and last end, (n, 4).

        A block without messages starts at the largest integer and ends at the smallest one.
        """


Found = TypeVar("Found")
Value = TypeVar("Value")


class Reducer(ABC, Generic[Found]):
    """Computes something over all messages of a run, a piece at a time.

    `detail`: needs the details of `Events`.
    """

    detail = False

    def begin(self, source: "EventSource") -> None:
        """Called once, before the first piece."""

    @abstractmethod
    def reduce(self, part: Part, events: "Events") -> Found:
        """What a piece of a part contributes. Called in any thread, for many parts at once."""

    @abstractmethod
    def add(self, part: Part, found: Found) -> None:
        """Add what `reduce` returned. Called in one thread; the pieces of a part come in order."""


class EventSource(ABC):
    """All messages of a run.

    `communicators`: identities, over all ranks. `detailed`: `Events` has the details.
    """

    operations: tuple[str, ...]
    communicators: tuple[int, ...]

    @property
    @abstractmethod
    def detailed(self) -> bool: ...

    @property
    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """The parts, by rank in ascending order."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of messages."""

    def load(self) -> "Events":
        """All messages at once, which takes about 60 bytes of memory each."""
        return concatenate(
            [part.read(0, part.slots, self.detailed) for part in self.parts], self.operations, self.communicators
        )

    def of_rank(self, rank: int) -> "Events":
        """All messages of one rank at once."""
        mine = [part.read(0, part.slots, self.detailed) for part in self.parts if part.rank == rank]
        return concatenate(mine, self.operations, self.communicators)


class EventsOfRanks(EventSource):
    """The messages of some ranks of a source."""

    def __init__(self, source: EventSource, ranks: Collection[int]) -> None:
        self.operations, self.communicators = source.operations, source.communicators
        self._detailed = source.detailed
        self._parts = [part for part in source.parts if part.rank in ranks]

    @property
    def detailed(self) -> bool:
        return self._detailed

    @property
    def parts(self) -> Sequence[Part]:
        return self._parts

    def __len__(self) -> int:
        return sum(int(part.times()[:, 0].sum()) for part in self._parts)


@dataclass(frozen=True)
class Events(EventSource):
    """Messages: arrays of one length n, in no particular order.

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

    @property
    def detailed(self) -> bool:
        return len(self.ordinal) == len(self)

    def take(self, chosen: Any) -> "Events":
        """The messages that a slice, a mask or an array of positions chooses."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        taken: dict[str, Any] = {name: take(column, chosen) for name, column in columns.items() if len(column)}
        return replace(self, **taken)

    def load(self) -> "Events":
        return self

    @cached_property
    def parts(self) -> "Sequence[Part]":
        order = np.lexsort((self.start_ns, self.rank))
        starts = np.flatnonzero(np.diff(self.rank[order], prepend=-1))
        return [_MemoryPart(self.take(mine)) for mine in np.split(order, starts[1:]) if len(mine)]


COLUMNS = tuple(one.name for one in fields(Events) if one.name not in ("operations", "communicators"))


class _MemoryPart(Part):
    """The messages of one rank, in order of time."""

    def __init__(self, events: Events) -> None:
        self.events, self.rank, self.slots = events, int(events.rank[0]), len(events)
        self.communicators, at, which = np.unique(events.communicator, return_index=True, return_inverse=True)
        self.sizes = events.communicator_size[at].astype(np.int64)
        self.ordinals = ordinal_ranges(which, events.ordinal, len(at))

    def read(self, first: int, count: int, detail: bool) -> Events:
        del detail
        return self.events.take(slice(first, first + count))

    def times(self) -> NDArray[np.int64]:
        start = self.events.start_ns
        begins = np.arange(0, len(start), BLOCK)
        ends = np.minimum(begins + BLOCK, len(start))
        last_end = np.maximum.reduceat(start + self.events.duration_ns, begins)
        return np.stack([ends - begins, start[begins], start[ends - 1], last_end], axis=1)


def take(column: NDArray[Any], chosen: Any) -> NDArray[Any]:
    """The values that a slice, a mask or an array of positions chooses.

    Indexing with a mask takes two to ten times longer.
    """
    if isinstance(chosen, slice):
        return column[chosen]
    return column.compress(chosen) if chosen.dtype == np.bool_ else column.take(chosen)


def ordinal_ranges(
    communicator: NDArray[Any], ordinal: NDArray[Any], communicators: int, so_far: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """The first and last ordinal on each communicator, (n, 2), with those `so_far`."""
    ranges = so_far
    if ranges is None:
        ranges = np.tile(np.array([NO_ORDINAL, -1], np.int64), (communicators, 1))
    values = ordinal.astype(np.int64)
    for column, extreme in enumerate((np.minimum, np.maximum)):
        of_column = np.ascontiguousarray(ranges[:, column])
        extreme.at(of_column, communicator, values)
        ranges[:, column] = of_column
    return ranges


def concatenate(pieces: Sequence[Events], operations: tuple[str, ...], communicators: tuple[int, ...] = ()) -> Events:
    """All `pieces` as one; they share their names and communicators."""
    empty = no_events()
    columns = {name: [getattr(empty, name), *(getattr(one, name) for one in pieces)] for name in COLUMNS}
    joined = {name: np.concatenate(arrays) for name, arrays in columns.items()}
    return Events(operations=operations, communicators=communicators, **joined)


# The phases of a Horovod message, in order; `other` is the rest of its operation, such as
# allocating the output.
PHASES = ("negotiation", "queueing", "copy_in", "communication", "copy_out", "other")


@dataclass(frozen=True)
class HorovodMessages:
    """Messages in rank 0's Horovod timeline: arrays of one length n."""

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
    events: EventSource
    np: int  # ranks of the job
    ranks: list[int]  # ranks that were recorded, and read
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
    # False: calls were only counted, so `events` is empty and `totals` has them all.
    has_calls: bool = True
    # By rank that marked two steps or more, if `steps` lacks marks (overwritten or only counted).
    step_sums: dict[int, StepSums] = field(default_factory=dict)
    # Only from Horovod's timeline: gives its messages, a block at a time.
    horovod: Callable[[], Iterator[HorovodMessages]] | None = None
    # The libraries that carried the messages; a source names only one that is not the launch's own.
    library: str = ""
    # Ranks that were recorded, but not read, because others were chosen.
    unread: list[int] = field(default_factory=list)

    @property
    def recorded(self) -> list[int]:
        """All ranks that were recorded."""
        return sorted([*self.ranks, *self.unread])

    def of_ranks(self, ranks: Collection[int]) -> "Recording":
        """The recording of some of its ranks."""
        kept = [rank for rank in self.ranks if rank in ranks]

        def of_kept(by_rank: dict[int, Value]) -> dict[int, Value]:
            return {rank: value for rank, value in by_rank.items() if rank in ranks}

        return replace(
            self,
            events=EventsOfRanks(self.events, kept),
            ranks=kept,
            unread=sorted(set(self.recorded).difference(kept)),
            totals=None if self.totals is None else self.totals.of_ranks(kept),
            point_to_point=None if self.point_to_point is None else self.point_to_point.of_ranks(kept),
            steps=of_kept(self.steps),
            step_threads=of_kept(self.step_threads),
            clock_error_ns=of_kept(self.clock_error_ns),
            step_sums=of_kept(self.step_sums),
        )

    def load(self) -> Events:
        """All messages at once, for small runs: see `EventSource.load`."""
        return self.events.load()


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
class ProfileSource:
    """A kind of profile and its reader."""

    # If a run has several kinds of profiles, the breakdown uses the one with the highest priority.
    priority: int
    # Returns None if the run has no profile of this kind. Reads every message once, and gives it to
    # the reducers. Of a choice of ranks, it need not read others than these and the lowest recorded
    # one, whose steps are the run's.
    read: Callable[[RunFolder, Sequence[Reducer[Any]], Collection[int] | None], Recording | None]


# By the name in a breakdown's `source`.
SOURCES: Registry[ProfileSource] = Registry("profile source", "hvscale.profiling.read.sources")


def sources_by_priority() -> list[ProfileSource]:
    return sorted(SOURCES.all().values(), key=lambda source: -source.priority)
