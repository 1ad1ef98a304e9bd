"""Matches the calls of different ranks that belong together, in one pass over all messages.

The n-th collective of a communicator is one call on each of its members. All profiles are read side
by side, a block of each at a time. A call waits for the others of its collective, which come soon:
ranks that are behind are read first. Calls that cannot find the others are dropped and counted, so
memory does not grow with the run.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hvscale.core.progress import Progress
from hvscale.profiling.read.events import NO_ORDINAL, Events, EventSource, Part, Reducer, take
from hvscale.profiling.read.passes import workers

# No rank can leave these before the last one arrives, whatever the library does. Collectives with a
# count per rank (reduce-scatter, allgatherv and the like) are not included: no rank needs to wait
# for an empty part.
SYNCHRONISING = {"allreduce", "allgather", "alltoall", "barrier", "reduce-scatter-block"}
CLOCK_READ_NS = 1000  # allows for the time to read a clock
ROUND_CALLS = 1 << 20  # of all ranks together, unless each would read less than SHORTEST_READ
SHORTEST_READ, LONGEST_READ = 1 << 12, 1 << 18
MAX_PENDING = 1 << 22  # calls; the oldest are dropped beyond it
SPREAD = 0x9E3779B1  # moves the ordinals of each communicator to another place in the table
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Calls:
    """Calls of collectives in columns of one length, with all times on one clock."""

    rank: NDArray[np.int32]
    operation: NDArray[np.uint8]  # index into the names
    communicator: NDArray[np.int32]  # the same number on every member
    ordinal: NDArray[np.uint32]  # the n-th collective of the communicator
    start_ns: Ints
    duration_ns: Ints
    bytes: Ints
    bitwise: NDArray[np.bool_]  # the reduction is bitwise

    def __len__(self) -> int:
        return len(self.rank)

    @classmethod
    def of(cls, events: Events) -> Self:
        return cls(**{column.name: getattr(events, column.name) for column in fields(cls)})

    def take(self, chosen: Any) -> Self:
        """The calls that a slice, a mask or an array of positions chooses."""
        return type(self)(**{name: take(getattr(self, name), chosen) for name in _COLUMNS})

    @classmethod
    def joined(cls, pieces: Sequence["Calls"]) -> Self:
        return cls(**{name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in _COLUMNS})


_COLUMNS = tuple(column.name for column in fields(Calls))


@dataclass(frozen=True)
class Collectives:
    """Some collectives with all their calls.

    By call, n: `calls`, `collective` (an index into the columns below), `waited_ns` (from the own
    start until the last member's, at most until the call ends).
    By collective, m: `last_rank`, `last_start_ns`, `members`, `bitwise`, `conflicting` (a member
    seems to have left before the last one arrived, so their clocks disagree).
    """

    calls: Calls
    collective: Ints
    waited_ns: Ints
    last_rank: Ints
    last_start_ns: Ints
    members: Ints
    bitwise: NDArray[np.bool_]
    conflicting: NDArray[np.bool_]
    left_early: Ints  # positions of the calls that show the conflicts

    @property
    def trusted(self) -> "Collectives":
        """Those whose clocks agree."""
        # Not cached: a batch that referred to itself would stay until the next garbage collection.
        return self._without_conflicts if self.conflicting.any() else self

    @cached_property
    def _without_conflicts(self) -> "Collectives":
        kept = ~self.conflicting
        number = np.cumsum(kept) - 1
        of_kept = kept[self.collective]
        return Collectives(
            calls=self.calls.take(of_kept),
            collective=number[self.collective[of_kept]],
            waited_ns=self.waited_ns[of_kept],
            last_rank=self.last_rank[kept],
            last_start_ns=self.last_start_ns[kept],
            members=self.members[kept],
            bitwise=self.bitwise[kept],
            conflicting=np.zeros(int(kept.sum()), np.bool_),
            left_early=np.empty(0, np.int64),
        )


class CollectiveAccumulator(ABC):
    """Computes something over all matched collectives, in bounded memory."""

    @abstractmethod
    def add(self, batch: Collectives) -> None:
        """Add some collectives. Called in one thread, roughly in order of time."""


def match_collectives(
    source: EventSource,
    accumulators: Sequence[CollectiveAccumulator],
    reducers: Sequence[Reducer[Any]] = (),
    clock_error_ns: Mapping[int, int | None] | None = None,
    absent: int = 0,
    without: Collection[int] = (),
    most: int | None = None,
) -> int:
    """Gives all collectives to the accumulators; returns the number of calls without a match.

    A collective counts if each member has exactly one call of it, all with the same operation.
    Messages go to `reducers`, too, in blocks. `clock_error_ns`: by rank, relative to rank 0; None
    or missing: not measured, treated as 0. `absent`: ranks of the job without a profile;
    collectives are matched without them. `without`: ranks to treat in the same way, whose messages
    still go to `reducers`. `most`: stop after about so many calls.
    """
    matcher = Matcher(source.parts, len(source.communicators), source.operations, clock_error_ns or {}, absent, without)
    parts = [part for part in source.parts if reducers or part.rank not in without]
    for reducer in reducers:
        reducer.begin(source)
    for batch in _batches(_rounds(parts, matcher, reducers, source.detailed and bool(accumulators)), matcher):
        for accumulator in accumulators:
            accumulator.add(batch)
        if most is not None and matcher.matched > most:
            break
    return matcher.unmatched


def _batches(rounds: Iterator[Calls], matcher: "Matcher") -> Iterator["Collectives"]:
    for calls in rounds:
        yield from matcher.match(calls)
    yield from matcher.rest()


def _rounds(
    parts: Sequence[Part], matcher: "Matcher", reducers: Sequence[Reducer[Any]], matching: bool
) -> Iterator[Calls]:
    """The calls that may find a match, a round at a time: a block of each part that is not ahead.

    Other threads read the next round while this one is matched.
    """
    length = min(max(ROUND_CALLS // max(len(parts), 1), SHORTEST_READ), LONGEST_READ)
    detail = matching or any(reducer.detail for reducer in reducers)
    position = dict.fromkeys(range(len(parts)), 0)

    def read(number: int, first: int) -> tuple[int, Calls | None, list[Any]]:
        part = parts[number]
        events = part.read(first, min(length, part.slots - first), detail)
        to_match = 0 if part.rank in matcher.without else len(events)
        calls = matcher.matchable(Calls.of(events)) if matching and to_match else None
        return to_match, calls, [reducer.reduce(part, events) for reducer in reducers]

    def start(pool: ThreadPoolExecutor) -> list[tuple[int, Future[tuple[int, Calls | None, list[Any]]]]]:
        unread = [number for number in position if position[number] < parts[number].slots]
        pending = matcher.pending_of_ranks()
        behind = min((int(pending[parts[number].rank]) for number in unread), default=0) + length
        chosen = [number for number in unread if pending[parts[number].rank] <= behind]
        started = [(number, pool.submit(read, number, position[number])) for number in chosen]
        position.update({number: position[number] + length for number in chosen})
        return started

    with (
        ThreadPoolExecutor(workers()) as pool,
        Progress("matching the calls of the ranks", sum(part.slots for part in parts)) as progress,
    ):
        running = start(pool)
        while running:
            found = [(parts[number], *future.result()) for number, future in running]
            running = start(pool)
            for part, to_match, _, results in found:
                matcher.unmatched += to_match
                for reducer, result in zip(reducers, results, strict=True):
                    reducer.add(part, result)
            progress.advance(length * len(found))
            calls = [calls for _, _, calls, _ in found if calls is not None]
            # The tables for a quarter of the round fit into the processor's cache.
            for quarter in range(0, length, length // 4):
                if calls:
                    yield Calls.joined([block.take(slice(quarter, quarter + length // 4)) for block in calls])


class Matcher:
    """Finds collectives among calls that come in any order, in time linear in their number.

    A call goes into a slot of a table, by its communicator and ordinal. Every rank has a random
    64-bit number: a slot is complete if the sum over its calls is that over the members. If two
    collectives meet in a slot, one of them waits for the next round, which uses other slots.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        communicators: int,
        operations: Sequence[str],
        clock_error_ns: Mapping[int, int | None],
        absent: int,
        without: Collection[int],
    ) -> None:
        self.without = without
        ranks = max((part.rank for part in parts), default=-1) + 1
        self._number_of = np.random.default_rng(0).integers(1, 1 << 63, ranks, np.uint64)
        self._sum = np.zeros(communicators, np.uint64)
        listed, sizes = np.zeros((2, communicators), np.int64)
        # A call can find the others only from the first to the last ordinal that all members have.
        self._first, self._last = np.zeros(communicators, np.int64), np.full(communicators, NO_ORDINAL, np.int64)
        for part in parts:
            if part.rank in without:
                continue
            of_part = part.communicators
            self._sum[of_part] += self._number_of[part.rank]
            listed[of_part] += 1
            sizes[of_part] = part.sizes
            self._first[of_part] = np.maximum(self._first[of_part], part.ordinals[:, 0])
            self._last[of_part] = np.minimum(self._last[of_part], part.ordinals[:, 1])
        matchable = (listed > 1) & (listed <= sizes) & (sizes - listed <= absent + len(without))
        self._first[~matchable] = NO_ORDINAL
        self.partial = bool((matchable & (listed < sizes)).any())
        names = [name.removeprefix("i") for name in operations]
        self._synchronises = np.array([name in SYNCHRONISING for name in names], np.bool_)
        self._is_barrier = np.array([name == "barrier" for name in names], np.bool_)
        self._error = np.array([clock_error_ns.get(rank) or 0 for rank in range(ranks)], np.int64)
        self._pending = self._none()
        self._collided = False
        self._salt = 1
        self.unmatched = self.matched = 0  # calls
        self._table(1 << 12)

    @staticmethod
    def _none() -> Calls:
        return Calls(*(np.empty(0, dtype) for dtype in ("i4", "u1", "i4", "u4", "i8", "i8", "i8", "?")))

    def _table(self, slots: int) -> None:
        self._slots = slots
        self._key, self._latest, self._at = np.empty((3, slots), np.int64)
        self._found = np.empty(slots, np.uint64)
        self._operation = np.empty(slots, np.uint8)

    def matchable(self, calls: Calls) -> Calls:
        """Those of the calls that may find the others; any thread."""
        ordinal = calls.ordinal.astype(np.int64)
        may = (ordinal >= self._first[calls.communicator]) & (ordinal <= self._last[calls.communicator])
        return calls if may.all() else calls.take(may)

    def pending_of_ranks(self) -> Ints:
        """The number of calls that wait for the others, by rank."""
        return np.bincount(self._pending.rank, minlength=len(self._error))

    def match(self, calls: Calls) -> Iterator[Collectives]:
        """The collectives that `calls` complete."""
        yield from self._match(Calls.joined([self._pending, calls]) if len(self._pending) else calls)
        if len(self._pending) > MAX_PENDING:
            self._pending = self._pending.take(slice(len(self._pending) // 2, None))

    def rest(self) -> Iterator[Collectives]:
        """The collectives that waited only because they met others in a slot."""
        before = -1
        while self._collided and len(self._pending) != before:
            before = len(self._pending)
            yield from self._match(self._pending)

    def _match(self, calls: Calls) -> Iterator[Collectives]:
        if self._slots < len(calls):
            self._table(1 << len(calls).bit_length())
        self._salt += 2
        communicator = calls.communicator.astype(np.int64)
        slot = (communicator * (self._salt * SPREAD) + calls.ordinal) & (self._slots - 1)
        key = communicator << 32 | calls.ordinal
        self._key[slot] = key
        collided = self._key[slot] != key
        waiting = [calls.take(collided)] if collided.any() else []
        self._collided = bool(waiting)
        if waiting:
            calls, slot = calls.take(~collided), slot[~collided]
        self._found[slot] = 0
        np.add.at(self._found, slot, self._number_of[calls.rank])
        complete = self._found[slot] == self._sum[calls.communicator]
        if not complete.all():
            waiting.append(calls.take(~complete))
            calls, slot = calls.take(complete), slot[complete]
        self._pending = Calls.joined(waiting) if waiting else self._none()
        self._operation[slot] = calls.operation
        differs = self._operation[slot] != calls.operation
        if differs.any():
            self._at[slot] = 0
            self._at[slot[differs]] = 1
            same = self._at[slot] == 0
            calls, slot = calls.take(same), slot[same]
        if len(calls):
            self.unmatched -= len(calls)
            self.matched += len(calls)
            yield self._collectives(calls, slot)

    def _collectives(self, calls: Calls, slot: Ints) -> Collectives:
        positions = np.arange(len(calls))
        self._at[slot] = positions
        representative = np.flatnonzero(self._at[slot] == positions)
        self._at[slot[representative]] = np.arange(len(representative))
        collective = self._at[slot]
        self._latest[slot] = calls.start_ns
        np.maximum.at(self._latest, slot, calls.start_ns)
        ahead = self._latest[slot] - calls.start_ns
        last = np.flatnonzero(ahead == 0)
        last_rank = np.full(len(representative), len(self._error), np.int64)
        np.minimum.at(last_rank, collective[last], calls.rank[last])
        left_early = self._left_early(calls, ahead, last_rank, collective)
        return Collectives(
            calls,
            collective,
            np.minimum(ahead, calls.duration_ns),
            last_rank,
            self._latest[slot[representative]],
            np.bincount(collective, minlength=len(representative)),
            calls.bitwise[representative],
            np.bincount(collective[left_early], minlength=len(representative)) > 0,
            left_early,
        )

    def _left_early(self, calls: Calls, ahead: Ints, last_rank: Ints, collective: Ints) -> Ints:
        """The calls that end before the last member of a synchronising collective arrives."""
        early = np.flatnonzero(ahead > calls.duration_ns + CLOCK_READ_NS)
        operation = calls.operation[early]
        synchronises = self._synchronises[operation] & ((calls.bytes[early] > 0) | self._is_barrier[operation])
        error = self._error[calls.rank[early]] + self._error[last_rank[collective[early]]]
        by = ahead[early] - calls.duration_ns[early]
        return early[synchronises & (by > error + CLOCK_READ_NS)]
