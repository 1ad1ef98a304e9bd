"""Splits the time of collectives into waiting for the last rank and moving data, and shows which
ranks arrive late.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.profiling.analyze.collectives import CollectiveAccumulator, Collectives, match_collectives
from hvscale.profiling.read.events import EventSource, Reducer

PROBED_CALLS = 1 << 20  # show whether a clock is wrong
WRONG_CLOCK_SHARE = 0.01  # of the collectives


class OperationWaiting(BaseModel):
    """The time of one operation, summed over ranks: until the last rank arrived, and the rest.

    Bitwise reductions, by which Horovod's ranks negotiate what to send, have separate rows.
    """

    operation: str
    bitwise: bool
    calls: int
    waiting_seconds: float
    transfer_seconds: float


class LateRank(BaseModel):
    """How often a rank arrived last, and how long the others waited for it.

    `mean_seconds` is a mean over the waiting ranks and over the collectives.
    """

    rank: int
    times_last: int
    share_last: float  # of the matched collectives
    mean_seconds: float
    total_seconds: float  # waiting that it caused, summed over the waiting ranks


class ClockDisagreement(BaseModel):
    """The collectives that `rank` seems to have left before `late_rank` arrived.

    The clocks of the two ranks differ by at least `at_least_seconds`.
    """

    rank: int
    late_rank: int
    collectives: int
    at_least_seconds: float


class Waiting(BaseModel):
    """Waiting and late ranks, over the `matched` collectives: those with a call from every rank.

    `coordination_collectives`: matched collectives with a bitwise reduction. `unmatched_calls`:
    calls without a match, because a ring overflowed or a rank died. `clock_conflicts`: collectives
    excluded because clocks disagree by more than `clock_error_seconds`. That is how far the clocks
    of two ranks may differ, as measured at the start; None if it was not measured.
    """

    operations: list[OperationWaiting]
    late_ranks: list[LateRank]
    matched: int
    coordination_collectives: int
    unmatched_calls: int
    clock_conflicts: int
    clock_error_seconds: float | None
    clock_disagreements: list[ClockDisagreement]


class WaitingTotals(CollectiveAccumulator):
    """Sums up the waiting by operation and by late rank.

    A rank waits from its own start until the start of the last member, at most until its call ends.
    Collectives whose clocks disagree are excluded and counted.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: of the operations."""
        kinds = 2 * len(names)
        self.names = names
        self.calls, self.waited_ns, self.duration_ns = np.zeros((3, kinds), np.int64)  # by operation * 2 + bitwise
        # By rank: collectives in which it was last, ranks that then waited, and how long.
        self.times_last, self.waiters, self.caused_ns = np.zeros((3, 0), np.int64)
        self.matched = self.coordination = self.conflicts = 0
        self.disagreements: dict[tuple[int, int], tuple[int, int]] = {}  # by pair of ranks: collectives, widest

    def add(self, batch: Collectives) -> None:
        if len(batch.left_early):
            self._add_conflicts(batch)
        good = batch.trusted
        kind = good.calls.operation.astype(np.int64) * 2 + good.calls.bitwise
        self.calls += np.bincount(kind, minlength=len(self.calls))
        self.waited_ns += _sums(kind, good.waited_ns, len(self.calls))
        self.duration_ns += _sums(kind, good.calls.duration_ns, len(self.calls))
        ranks = max(len(self.times_last), int(good.last_rank.max(initial=-1)) + 1)
        self.times_last, self.waiters, self.caused_ns = (
            np.pad(column, (0, ranks - len(column))) for column in (self.times_last, self.waiters, self.caused_ns)
        )
        self.times_last += np.bincount(good.last_rank, minlength=ranks)
        self.waiters += _sums(good.last_rank, good.members - 1, ranks)
        self.caused_ns += _sums(good.last_rank[good.collective], good.waited_ns, ranks)
        self.matched += len(good.last_rank)
        self.coordination += int(np.count_nonzero(good.bitwise))

    def _add_conflicts(self, batch: Collectives) -> None:
        """Counts the collectives of each pair of ranks, and the widest disagreement."""
        self.conflicts += int(np.count_nonzero(batch.conflicting))
        early = batch.calls.take(batch.left_early)
        collective = batch.collective[batch.left_early]
        by = batch.last_start_ns[collective] - early.start_ns - early.duration_ns
        pairs = np.stack([early.rank.astype(np.int64), batch.last_rank[collective]])
        distinct, which, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        widest = np.zeros(len(counts), np.int64)
        np.maximum.at(widest, which.reshape(-1), by)
        for rank, late_rank, count, nanoseconds in zip(
            *distinct.tolist(), counts.tolist(), widest.tolist(), strict=True
        ):
            before = self.disagreements.get((rank, late_rank), (0, 0))
            self.disagreements[rank, late_rank] = before[0] + count, max(before[1], nanoseconds)

    def result(self, unmatched: int, ranks: Iterable[int], clock_error_ns: Mapping[int, int | None]) -> Waiting:
        """`unmatched`: from `match_collectives`. `ranks`: those whose calls were matched."""
        moved_ns = self.duration_ns - self.waited_ns
        rows = [
            OperationWaiting(
                operation=self.names[code // 2],
                bitwise=bool(code % 2),
                calls=int(self.calls[code]),
                waiting_seconds=float(self.waited_ns[code]) / 1e9,
                transfer_seconds=float(moved_ns[code]) / 1e9,
            )
            for code in np.flatnonzero(self.calls).tolist()
        ]
        disagreements = [
            ClockDisagreement(rank=rank, late_rank=late, collectives=count, at_least_seconds=nanoseconds / 1e9)
            for (rank, late), (count, nanoseconds) in sorted(self.disagreements.items())
        ]
        return Waiting(
            operations=sorted(rows, key=lambda row: -(row.waiting_seconds + row.transfer_seconds)),
            late_ranks=self._late_ranks(),
            matched=self.matched,
            coordination_collectives=self.coordination,
            unmatched_calls=unmatched,
            clock_conflicts=self.conflicts,
            clock_error_seconds=_clock_error_seconds(ranks, clock_error_ns),
            clock_disagreements=sorted(disagreements, key=lambda pair: -pair.at_least_seconds),
        )

    def _late_ranks(self) -> list[LateRank]:
        """One row per rank that was ever last."""
        rows = [
            LateRank(
                rank=rank,
                times_last=int(self.times_last[rank]),
                share_last=float(self.times_last[rank] / self.matched),
                mean_seconds=float(self.caused_ns[rank] / 1e9 / self.waiters[rank]),
                total_seconds=float(self.caused_ns[rank] / 1e9),
            )
            for rank in np.flatnonzero(self.times_last).tolist()
        ]
        return sorted(rows, key=lambda row: -row.total_seconds)


def waiting(
    source: EventSource,
    clock_error_ns: Mapping[int, int | None],
    accumulators: Sequence[CollectiveAccumulator] = (),
    reducers: Sequence[Reducer[Any]] = (),
    absent: int = 0,
    without: Collection[int] = (),
) -> Waiting:
    """The waiting of a run, in one pass over its messages; arguments as in `match_collectives`."""
    totals = WaitingTotals(source.operations)
    unmatched = match_collectives(source, [totals, *accumulators], reducers, clock_error_ns, absent, without)
    return totals.result(unmatched, {part.rank for part in source.parts}.difference(without), clock_error_ns)


def find_wrong_clocks(
    source: EventSource, clock_error_ns: Mapping[int, int | None], absent: int = 0
) -> tuple[list[int], float]:
    """The few ranks whose clocks disagree with the others' in many of the first collectives.

    Also returns the widest disagreement in seconds. No ranks if they would be half of all ranks, or
    if they spoil less than WRONG_CLOCK_SHARE of the collectives.
    """
    totals = WaitingTotals(source.operations)
    match_collectives(source, [totals], (), clock_error_ns, absent, most=PROBED_CALLS)
    if totals.conflicts <= WRONG_CLOCK_SHARE * (totals.matched + totals.conflicts):
        return [], 0.0
    others: defaultdict[int, set[int]] = defaultdict(set)
    for rank, late_rank in totals.disagreements:
        others[rank].add(late_rank)
        others[late_rank].add(rank)
    wrong = []
    while any(others.values()):  # the rank that disagrees with the most others is wrong
        # Of equals the highest: rank 0's clock is the reference of all.
        worst = max(others, key=lambda rank: (len(others[rank]), rank))
        for other in others.pop(worst):
            others[other].discard(worst)
        wrong.append(worst)
    if 2 * len(wrong) >= len({part.rank for part in source.parts}):
        return [], 0.0
    return sorted(wrong), max(widest for _, widest in totals.disagreements.values()) / 1e9


def _sums(groups: NDArray[np.int64], values: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """The sum of the values of each group, exact: integers in a float have only 53 bits."""
    sums = np.zeros(length, np.int64)
    np.add.at(sums, groups, values)
    return sums


def _clock_error_seconds(ranks: Iterable[int], clock_error_ns: Mapping[int, int | None]) -> float | None:
    """The sum of the two largest errors, because each is relative to rank 0."""
    errors = [clock_error_ns.get(rank) for rank in ranks]
    known = [error for error in errors if error is not None]
    return sum(sorted(known)[-2:]) / 1e9 if errors and len(known) == len(errors) else None
