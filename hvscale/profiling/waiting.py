"""Waiting against moving: which part of a collective's time went by until its last rank arrived, and which rank that was."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel


class OperationWaiting(BaseModel):
    """One operation's time, summed over ranks: `waiting_seconds` until the last rank had arrived, the rest moved data."""

    operation: str
    calls: int
    waiting_seconds: float
    transfer_seconds: float


class LateRank(BaseModel):
    """How often a rank was the last to arrive, and for how long the others then waited for it (a mean over those ranks and times)."""

    rank: int
    times_last: int
    share_last: float  # of the collectives that were matched
    mean_seconds: float
    total_seconds: float  # of waiting that it caused, summed over the ranks that waited


class Waiting(BaseModel):
    """`matched`: collectives of which every rank's call is known. The others, of rings that wrapped or ranks that died, are left out."""

    operations: list[OperationWaiting]
    late_ranks: list[LateRank]
    matched: int
    unmatched_calls: int


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


def waiting(calls: Calls, names: tuple[str, ...]) -> Waiting:
    """Match the n-th collective of each communicator across ranks and split its time.

    A rank waits from its own start until the last member's, but no longer than its own call lasts. A collective counts only when
    each member has exactly one call of it, all of one operation.
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

    if not whole.any():
        return Waiting(operations=[], late_ranks=[], matched=0, unmatched_calls=len(order))
    last_start = np.maximum.reduceat(start, firsts)
    waited = np.clip(last_start[group] - start, 0, duration)
    counted = whole[group]
    rows = []
    for code in np.unique(operation[counted]):
        chosen = counted & (operation == code)
        rows.append(
            OperationWaiting(
                operation=names[code],
                calls=int(chosen.sum()),
                waiting_seconds=float(waited[chosen].sum()) / 1e9,
                transfer_seconds=float((duration - waited)[chosen].sum()) / 1e9,
            )
        )
    return Waiting(
        operations=sorted(rows, key=lambda row: -(row.waiting_seconds + row.transfer_seconds)),
        late_ranks=_late_ranks(rank, start, last_start, waited, group, whole, members),
        matched=int(whole.sum()),
        unmatched_calls=int((~counted).sum()),
    )


def _late_ranks(
    rank: NDArray[np.int64],
    start: NDArray[np.int64],
    last_start: NDArray[np.int64],
    waited: NDArray[np.int64],
    group: NDArray[np.int64],
    whole: NDArray[np.bool_],
    members: NDArray[np.int64],
) -> list[LateRank]:
    """One row a rank that was ever last; of two that arrive in the same nanosecond the lower rank counts."""
    is_last = (start == last_start[group]) & whole[group]
    last_at = np.flatnonzero(is_last)
    groups, keep = np.unique(group[last_at], return_index=True)
    late = rank[last_at[keep]]
    caused = np.bincount(group, weights=waited, minlength=len(whole))[groups]
    waiters = members[groups] - 1
    rows = []
    for number in np.unique(late):
        chosen = late == number
        total = float(caused[chosen].sum()) / 1e9
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
