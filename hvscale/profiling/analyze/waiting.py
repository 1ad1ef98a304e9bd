"""Splits the time of collectives into waiting for the last rank and moving data, and shows which
ranks arrive late.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

# No rank can leave these before the last one arrives, whatever the library does. Collectives with a
# count per rank (reduce-scatter, allgatherv and the like) are not included: no rank needs to wait
# for an empty part.
SYNCHRONISING = {"allreduce", "allgather", "alltoall", "barrier", "reduce-scatter-block"}
CLOCK_READ_NS = 1000  # allows for the time to read a clock


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


@dataclass(frozen=True)
class Calls:
    """Calls of collectives in columns of one length, with all times on one clock."""

    rank: NDArray[np.int64]
    operation: NDArray[np.int64]  # index into the names
    communicator: NDArray[np.int64]  # the same number on every member
    ordinal: NDArray[np.int64]  # the n-th collective of the communicator
    size: NDArray[np.int64]  # ranks in the communicator
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    bytes: NDArray[np.int64]
    bitwise: NDArray[np.int64]  # 1: the reduction is bitwise


def waiting(calls: Calls, names: tuple[str, ...], clock_error_ns: Mapping[int, int | None]) -> Waiting:
    """Matches the n-th collective of each communicator across ranks and splits its time.

    A rank waits from its own start until the start of the last member, at most until its call ends.
    A collective counts if each member has exactly one call of it, all with the same operation, and
    if no member left a synchronising one before the last member arrived.

    `clock_error_ns`: by rank, relative to rank 0. None or absent: not measured, treated as 0.
    """
    order = np.lexsort((calls.rank, calls.ordinal, calls.communicator))
    communicator, ordinal = calls.communicator[order], calls.ordinal[order]
    operation, rank = calls.operation[order], calls.rank[order]
    start, duration = calls.start_ns[order], calls.duration_ns[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (communicator[1:] != communicator[:-1]) | (ordinal[1:] != ordinal[:-1])
    firsts = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    members = np.diff(np.append(firsts, len(order)))
    same = np.ones(len(order), bool)
    same[1:] = is_first[1:] | ((operation[1:] == operation[:-1]) & (rank[1:] != rank[:-1]))
    is_complete = (
        (members == calls.size[order][firsts]) & (np.bincount(group[~same], minlength=len(firsts)) == 0) & (members > 1)
    )
    clock_error_seconds = _clock_error_seconds(np.unique(rank), clock_error_ns)
    if not is_complete.any():
        return Waiting(
            operations=[],
            late_ranks=[],
            matched=0,
            coordination_collectives=0,
            unmatched_calls=len(order),
            clock_conflicts=0,
            clock_error_seconds=clock_error_seconds,
            clock_disagreements=[],
        )
    last_start = np.maximum.reduceat(start, firsts)
    last_rank = _last_ranks(rank, start == last_start[group], group)
    error = np.array([clock_error_ns.get(number) or 0 for number in range(int(rank.max()) + 1)], np.int64)
    synchronises = np.array([name.removeprefix("i") in SYNCHRONISING for name in names])[operation] & (
        (calls.bytes[order] > 0) | np.array(["barrier" in name for name in names])[operation]
    )
    early_ns = last_start[group] - (start + duration)
    left_early = is_complete[group] & synchronises & (early_ns > error[rank] + error[last_rank[group]] + CLOCK_READ_NS)
    clock_conflicts = np.bincount(group[left_early], minlength=len(firsts)) > 0
    disagreements = _disagreements(rank[left_early], last_rank[group[left_early]], early_ns[left_early])
    waited = np.clip(last_start[group] - start, 0, duration)
    counted_collectives = is_complete & ~clock_conflicts
    counted = counted_collectives[group]
    kind = operation * 2 + calls.bitwise[order]
    rows = []
    for code in np.unique(kind[counted]):
        chosen = counted & (kind == code)
        rows.append(
            OperationWaiting(
                operation=names[code // 2],
                bitwise=bool(code % 2),
                calls=int(chosen.sum()),
                waiting_seconds=float(waited[chosen].sum()) / 1e9,
                transfer_seconds=float((duration - waited)[chosen].sum()) / 1e9,
            )
        )
    caused = np.bincount(group, weights=waited, minlength=len(firsts))
    return Waiting(
        operations=sorted(rows, key=lambda row: -(row.waiting_seconds + row.transfer_seconds)),
        late_ranks=_late_ranks(
            last_rank[counted_collectives], caused[counted_collectives], members[counted_collectives] - 1
        ),
        matched=int(counted_collectives.sum()),
        coordination_collectives=int((counted_collectives & (calls.bitwise[order][firsts] == 1)).sum()),
        unmatched_calls=int((~is_complete[group]).sum()),
        clock_conflicts=int((is_complete & clock_conflicts).sum()),
        clock_error_seconds=clock_error_seconds,
        clock_disagreements=disagreements,
    )


def _clock_error_seconds(ranks: NDArray[np.int64], clock_error_ns: Mapping[int, int | None]) -> float | None:
    """The sum of the two largest errors, because each is relative to rank 0."""
    errors = [clock_error_ns.get(rank) for rank in ranks.tolist()]
    known = [error for error in errors if error is not None]
    return sum(sorted(known)[-2:]) / 1e9 if errors and len(known) == len(errors) else None


def _last_ranks(rank: NDArray[np.int64], is_last: NDArray[np.bool_], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last rank of each group; of two that arrive in the same nanosecond, the lower one."""
    at = np.flatnonzero(is_last)
    _, first = np.unique(group[at], return_index=True)
    return rank[at[first]]


def _disagreements(
    rank: NDArray[np.int64], late_rank: NDArray[np.int64], early_ns: NDArray[np.int64]
) -> list[ClockDisagreement]:
    """One row per pair of ranks, the largest disagreement first."""
    pairs, which, counts = np.unique(np.stack([rank, late_rank]), axis=1, return_inverse=True, return_counts=True)
    widest = np.zeros(len(counts), np.int64)
    np.maximum.at(widest, which.reshape(-1), early_ns)
    found = [
        ClockDisagreement(rank=left, late_rank=came, collectives=collectives, at_least_seconds=nanoseconds / 1e9)
        for left, came, collectives, nanoseconds in zip(*pairs.tolist(), counts.tolist(), widest.tolist(), strict=True)
    ]
    return sorted(found, key=lambda pair: -pair.at_least_seconds)


def _late_ranks(late: NDArray[np.int64], caused_ns: NDArray[np.float64], waiters: NDArray[np.int64]) -> list[LateRank]:
    """One row per rank that was ever last; the arguments are by collective."""
    rows = []
    for number in np.unique(late):
        chosen = late == number
        total = float(caused_ns[chosen].sum()) / 1e9
        rows.append(
            LateRank(
                rank=int(number),
                times_last=int(chosen.sum()),
                share_last=float(chosen.mean()),
                mean_seconds=total / float(waiters[chosen].sum()),
                total_seconds=total,
            )
        )
    return sorted(rows, key=lambda row: -row.total_seconds)
