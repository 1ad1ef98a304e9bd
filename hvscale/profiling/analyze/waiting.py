"""Waiting against moving: which part of a collective's time went by until its last rank arrived,
and which rank that was.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

# Nobody leaves these before the last rank has come, whatever the library does. Those with a count
# for each rank (allgatherv and the like, reduce-scatter) are not among them: a rank whose part is
# empty need not be waited for.
SYNCHRONISING = {"allreduce", "allgather", "alltoall", "barrier", "reduce-scatter-block"}
READING_NS = 1000  # reading a clock takes time itself


class OperationWaiting(BaseModel):
    """One operation's time, summed over ranks: `waiting_seconds` until the last rank had arrived,
    the rest moved data.

    `bitwise`: calls whose reduction is a bitwise one, by which Horovod's ranks agree on what to
    send, stand in a row of their own.
    """

    operation: str
    bitwise: bool
    calls: int
    waiting_seconds: float
    transfer_seconds: float


class LateRank(BaseModel):
    """How often a rank was the last to arrive, and for how long the others then waited for it (a
    mean over those ranks and times).
    """

    rank: int
    times_last: int
    share_last: float  # of the collectives that were matched
    mean_seconds: float
    total_seconds: float  # of waiting that it caused, summed over the ranks that waited


class ClockDisagreement(BaseModel):
    """Collectives that `rank` seems to have left before `late_rank` came: their clocks are apart by
    `at_least_seconds` or more.
    """

    rank: int
    late_rank: int
    collectives: int
    at_least_seconds: float


class Waiting(BaseModel):
    """`matched`: collectives of which every rank's call is known, `agreements` those of them with a
    bitwise reduction. The others, of rings that wrapped or ranks that died, are left out.

    Left out are also `contradicted` collectives, in which clocks disagree by more than they should:
    `clock_error_seconds`, by which the clocks of two ranks may be apart as compared at the start;
    None where they were not compared.
    """

    operations: list[OperationWaiting]
    late_ranks: list[LateRank]
    matched: int
    agreements: int
    unmatched_calls: int
    contradicted: int
    clock_error_seconds: float | None
    clock_disagreements: list[ClockDisagreement]


@dataclass(frozen=True)
class Calls:
    """Calls of collectives in columns of one length; times on one clock, in nanoseconds."""

    rank: NDArray[np.int64]
    operation: NDArray[np.int64]  # index into the names
    communicator: NDArray[np.int64]  # the same number on every member
    ordinal: NDArray[np.int64]  # the n-th collective of the communicator
    size: NDArray[np.int64]  # ranks in the communicator
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    bytes: NDArray[np.int64]
    bitwise: NDArray[np.int64]  # 1: the reduction is a bitwise one


def waiting(calls: Calls, names: tuple[str, ...], clock_error_ns: Mapping[int, int | None]) -> Waiting:
    """Match the n-th collective of each communicator across ranks and split its time.

    A rank waits from its own start until the last member's, but no longer than its own call lasts.
    A collective counts only when each member has exactly one call of it, all of one operation, and
    no member left a synchronising one before the last came. `clock_error_ns` is by rank, against
    rank 0; None or absent: not measured, which is taken as 0 here.
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
    whole = (
        (members == calls.size[order][firsts]) & (np.bincount(group[~same], minlength=len(firsts)) == 0) & (members > 1)
    )
    clock_error_seconds = _clock_error_seconds(np.unique(rank), clock_error_ns)
    if not whole.any():
        return Waiting(
            operations=[],
            late_ranks=[],
            matched=0,
            agreements=0,
            unmatched_calls=len(order),
            contradicted=0,
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
    left_early = whole[group] & synchronises & (early_ns > error[rank] + error[last_rank[group]] + READING_NS)
    contradicted = np.bincount(group[left_early], minlength=len(firsts)) > 0
    disagreements = _disagreements(rank[left_early], last_rank[group[left_early]], early_ns[left_early])
    waited = np.clip(last_start[group] - start, 0, duration)
    found = whole & ~contradicted
    counted = found[group]
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
        late_ranks=_late_ranks(last_rank[found], caused[found], members[found] - 1),
        matched=int(found.sum()),
        agreements=int((found & (calls.bitwise[order][firsts] == 1)).sum()),
        unmatched_calls=int((~whole[group]).sum()),
        contradicted=int((whole & contradicted).sum()),
        clock_error_seconds=clock_error_seconds,
        clock_disagreements=disagreements,
    )


def _clock_error_seconds(ranks: NDArray[np.int64], clock_error_ns: Mapping[int, int | None]) -> float | None:
    """Of the two ranks that were compared worst: each is compared with rank 0."""
    errors = [clock_error_ns.get(rank) for rank in ranks.tolist()]
    known = [error for error in errors if error is not None]
    return sum(sorted(known)[-2:]) / 1e9 if errors and len(known) == len(errors) else None


def _last_ranks(rank: NDArray[np.int64], is_last: NDArray[np.bool_], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """By group; of two that arrive in the same nanosecond the lower rank counts."""
    at = np.flatnonzero(is_last)
    _, first = np.unique(group[at], return_index=True)
    return rank[at[first]]


def _disagreements(
    rank: NDArray[np.int64], late_rank: NDArray[np.int64], early_ns: NDArray[np.int64]
) -> list[ClockDisagreement]:
    """One a pair of ranks, the widest first."""
    pairs, which, counts = np.unique(np.stack([rank, late_rank]), axis=1, return_inverse=True, return_counts=True)
    widest = np.zeros(len(counts), np.int64)
    np.maximum.at(widest, which.reshape(-1), early_ns)
    found = [
        ClockDisagreement(rank=left, late_rank=came, collectives=collectives, at_least_seconds=nanoseconds / 1e9)
        for left, came, collectives, nanoseconds in zip(*pairs.tolist(), counts.tolist(), widest.tolist(), strict=True)
    ]
    return sorted(found, key=lambda pair: -pair.at_least_seconds)


def _late_ranks(late: NDArray[np.int64], caused_ns: NDArray[np.float64], waiters: NDArray[np.int64]) -> list[LateRank]:
    """One row a rank that was ever last; the arguments are by collective."""
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
