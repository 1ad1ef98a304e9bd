"""Sums of waiting by operation and by late rank, over batches of calls, and wrong clocks.

Times are whole seconds, so that every figure is exact.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hvscale.profiling.analyze.collectives import match_collectives
from hvscale.profiling.analyze.waiting import (
    ClockDisagreement,
    LateRank,
    OperationWaiting,
    Waiting,
    WaitingTotals,
    find_wrong_clocks,
    waiting,
)
from hvscale.profiling.read.events import Events, Part, Reducer
from tests.profiling.test_waiting import ALLGATHERV, ALLREDUCE, BROADCAST, NAMES, Call, calls

SECOND_NS = 10**9
MS = 10**6
CLOCKS = dict.fromkeys(range(8), 0)


def collective(operation: int, ordinal: int, starts: Sequence[int], end: int, communicator: int = 1) -> list[Call]:
    """The call of each rank, with its start in seconds; all ranks leave at `end`."""
    return [
        (rank, operation, communicator, ordinal, len(starts), start * SECOND_NS, (end - start) * SECOND_NS)
        for rank, start in enumerate(starts)
    ]


def left_early(ordinal: int, ends: Sequence[int], late: int) -> list[Call]:
    """An all-reduce that all ranks begin at 0 s but the last one, which begins at `late`."""
    rows: list[Call] = [
        (rank, ALLREDUCE, 1, ordinal, len(ends) + 1, 0, end * SECOND_NS) for rank, end in enumerate(ends)
    ]
    return [*rows, (len(ends), ALLREDUCE, 1, ordinal, len(ends) + 1, late * SECOND_NS, SECOND_NS)]


def summed(*batches: list[Call], bitwise: int = 0) -> Waiting:
    """The waiting of all batches, whose calls match one batch at a time."""
    totals = WaitingTotals(NAMES)
    unmatched = sum(match_collectives(calls(rows, bitwise=bitwise), [totals], (), CLOCKS) for rows in batches)
    return totals.result(unmatched, [0, 1], CLOCKS)


def test_every_figure_of_four_collectives() -> None:
    rows = [
        *collective(ALLREDUCE, 0, (0, 4, 2), 9),
        *collective(ALLREDUCE, 1, (11, 10, 10), 12),
        *collective(ALLREDUCE, 2, (20, 21, 20), 22),  # bitwise
        *collective(BROADCAST, 3, (30, 30, 36), 40),
        (0, ALLREDUCE, 1, 4, 3, 50 * SECOND_NS, SECOND_NS),  # the others died before it
    ]
    events = calls(rows)
    events = replace(events, bitwise=events.ordinal == 2)
    assert waiting(events, {0: 2 * SECOND_NS, 1: 3 * SECOND_NS, 2: SECOND_NS}) == Waiting(
        operations=[
            OperationWaiting(operation="allreduce", bitwise=False, calls=6, waiting_seconds=8, transfer_seconds=18),
            OperationWaiting(operation="broadcast", bitwise=False, calls=3, waiting_seconds=12, transfer_seconds=12),
            OperationWaiting(operation="allreduce", bitwise=True, calls=3, waiting_seconds=2, transfer_seconds=3),
        ],
        late_ranks=[
            LateRank(rank=2, times_last=1, share_last=0.25, mean_seconds=6, total_seconds=12),
            LateRank(rank=1, times_last=2, share_last=0.5, mean_seconds=2, total_seconds=8),
            LateRank(rank=0, times_last=1, share_last=0.25, mean_seconds=1, total_seconds=2),
        ],
        matched=4,
        coordination_collectives=1,
        unmatched_calls=1,
        clock_conflicts=0,
        clock_error_seconds=5,
        clock_disagreements=[],
    )


def test_the_last_operation_has_a_row_for_bitwise_calls() -> None:
    (row,) = waiting(calls(collective(ALLGATHERV, 0, (0, 1), 3), bitwise=1), {}).operations
    assert (row.operation, row.bitwise, row.waiting_seconds, row.transfer_seconds) == ("allgatherv", True, 1, 4)


def test_ranks_that_are_never_last_have_no_row() -> None:
    found = summed(collective(ALLREDUCE, 0, (0, 0, 1), 2))
    assert [late.rank for late in found.late_ranks] == [2]


def test_waiting_adds_up_over_batches() -> None:
    """The second batch has a higher late rank, the third one a lower one again."""
    found = summed(
        collective(ALLREDUCE, 0, (0, 3), 4),
        collective(ALLREDUCE, 0, (0, 0, 0, 5), 6),
        collective(ALLREDUCE, 0, (0, 2), 4),
    )
    assert [(late.rank, late.times_last, late.mean_seconds, late.total_seconds) for late in found.late_ranks] == [
        (3, 1, 5, 15),
        (1, 2, 2.5, 5),
    ]
    (row,) = found.operations
    assert (row.calls, row.waiting_seconds, row.transfer_seconds) == (8, 20, 4 * 1 + 2 * 1 + 2 * 2)
    assert found.matched == 3


def test_bitwise_collectives_add_up_over_batches() -> None:
    found = summed(collective(ALLREDUCE, 0, (0, 1), 2), collective(ALLREDUCE, 0, (0, 1), 2), bitwise=1)
    assert (found.matched, found.coordination_collectives) == (2, 2)


def test_clock_disagreements_of_a_pair_add_up_over_batches_and_the_widest_is_kept() -> None:
    found = summed(
        [*left_early(0, (1,), 4), *left_early(1, (1,), 6)],
        [*left_early(0, (1,), 3), *left_early(1, (8,), 2)],
        left_early(0, (1,), 7),
    )
    assert found.clock_disagreements == [ClockDisagreement(rank=0, late_rank=1, collectives=4, at_least_seconds=6)]
    assert (found.clock_conflicts, found.matched) == (4, 1)


def test_the_widest_clock_disagreement_comes_first() -> None:
    found = summed(left_early(0, (2, 1), 6), left_early(1, (6, 5), 6))
    assert [(pair.rank, pair.late_rank, pair.at_least_seconds) for pair in found.clock_disagreements] == [
        (1, 2, 5),
        (0, 2, 4),
    ]
    assert [pair.collectives for pair in found.clock_disagreements] == [2, 1]


def test_without_ranks_the_clock_error_is_unknown() -> None:
    assert WaitingTotals(NAMES).result(0, [], CLOCKS).clock_error_seconds is None


class CountedMessages(Reducer[int]):
    """How many messages a pass gave to it."""

    messages = 0

    def reduce(self, part: Part, events: Events) -> int:
        return len(events)

    def add(self, part: Part, found: int) -> None:
        self.messages += found


def test_one_pass_serves_other_accumulators_and_reducers() -> None:
    other, counted = WaitingTotals(NAMES), CountedMessages()
    found = waiting(calls(collective(ALLREDUCE, 0, (0, 1), 2)), CLOCKS, [other], [counted])
    assert other.result(0, [0, 1], CLOCKS) == found
    assert counted.messages == 2


def test_ranks_may_be_left_out() -> None:
    counted = CountedMessages()
    events = calls(collective(ALLREDUCE, 0, (0, 1, 5), 6))
    found = waiting(events, {0: SECOND_NS, 1: 2 * SECOND_NS, 2: None}, [], [counted], without=[2])
    (late,) = found.late_ranks
    assert (late.rank, late.total_seconds, found.matched) == (1, 1, 1)
    assert found.clock_error_seconds == 3
    assert (counted.messages, found.unmatched_calls) == (3, 0), "reducers get the messages of all ranks"


def test_collectives_match_without_ranks_that_have_no_profile() -> None:
    of_two_ranks = [row for row in collective(ALLREDUCE, 0, (0, 1, 0), 2) if row[0] < 2]
    assert waiting(calls(of_two_ranks), CLOCKS).matched == 0
    assert waiting(calls(of_two_ranks), CLOCKS, absent=1).matched == 1


def agreed(members: Sequence[int], count: int, first: int = 0, late_ms: dict[int, int] | None = None) -> list[Call]:
    """All-reduces of 1 ms between some ranks, whose calls seem to be `late_ms` late, by rank.

    The communicator of n ranks has number n.
    """
    late = late_ms or {}
    return [
        (rank, ALLREDUCE, len(members), ordinal, len(members), (100 * ordinal + late.get(rank, 0)) * MS, MS)
        for ordinal in range(first, first + count)
        for rank in members
    ]


def test_the_rank_whose_clock_disagrees_with_all_others_is_wrong() -> None:
    events = calls(agreed(range(4), 10, late_ms={1: 6}))
    assert find_wrong_clocks(events, {}) == ([1], 0.005)
    assert find_wrong_clocks(events, {1: 5 * MS}) == ([], 0)  # as far as it was measured


@pytest.mark.parametrize(("conflicting", "wrong"), [(0, []), (1, []), (2, [1])])
def test_a_clock_is_wrong_if_it_spoils_more_than_a_hundredth_of_the_collectives(
    conflicting: int, wrong: list[int]
) -> None:
    rows = agreed(range(3), 100 - conflicting) + agreed(range(3), conflicting, 100 - conflicting, {1: 6})
    assert find_wrong_clocks(calls(rows), {})[0] == wrong


@pytest.mark.parametrize(("ranks", "wrong"), [(2, []), (3, [2])])
def test_half_of_all_ranks_cannot_be_wrong(ranks: int, wrong: list[int]) -> None:
    rows = agreed(range(ranks), 10, late_ms={ranks - 1: 6})
    assert find_wrong_clocks(calls(rows), {}) == (wrong, 0.005 if wrong else 0)


def test_of_two_ranks_that_disagree_the_reference_is_right() -> None:
    """All clocks are relative to rank 0's; rank 1 has no collective with the others."""
    rows = agreed(range(2), 10, late_ms={1: 6}) + agreed(range(2, 5), 10)
    assert find_wrong_clocks(calls(rows), {}) == ([1], 0.005)


def test_two_of_four_ranks_cannot_be_wrong() -> None:
    """Ranks 0 and 1 disagree with 3, and 1 with 2: two ranks would be left."""
    rows = agreed([0, 1, 3], 10, late_ms={3: 6}) + agreed([1, 2], 10, late_ms={2: 6})
    assert find_wrong_clocks(calls(rows), {}) == ([], 0)


def test_several_clocks_may_be_wrong() -> None:
    """Rank 5 disagrees with four ranks, and rank 4 with two of them."""
    rows = agreed([0, 1, 2, 3, 5], 10, late_ms={5: 6}) + agreed([0, 1, 4], 10, late_ms={4: 8})
    assert find_wrong_clocks(calls(rows), {}) == ([4, 5], 0.007)


def test_wrong_clocks_are_found_without_ranks_that_have_no_profile() -> None:
    recorded = [row for row in agreed(range(4), 10, late_ms={1: 6}) if row[0] < 3]
    assert find_wrong_clocks(calls(recorded), {}) == ([], 0)
    assert find_wrong_clocks(calls(recorded), {}, absent=1) == ([1], 0.005)
