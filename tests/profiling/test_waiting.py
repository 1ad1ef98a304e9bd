"""The split of a collective's time, for known and for random calls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.profiling.analyze.waiting import Waiting, waiting
from hvscale.profiling.read.events import Events

NAMES = ("reduce", "broadcast", "allreduce", "ibarrier", "allgatherv")
REDUCE, BROADCAST, ALLREDUCE, IBARRIER, ALLGATHERV = range(len(NAMES))
Call = tuple[int, int, int, int, int, int, int]  # rank, operation, communicator, ordinal, size, start, duration


def calls(rows: list[Call], size: int = 8, bitwise: int = 0) -> Events:
    rank, operation, communicator, ordinal, ranks, start, duration = np.array(rows, np.int64).reshape(-1, 7).T
    return Events(
        operations=NAMES,
        communicators=tuple(range(8)),
        rank=rank.astype(np.int32),
        operation=operation.astype(np.uint8),
        bytes=np.full(len(rows), size),
        start_ns=start,
        duration_ns=duration,
        communicator_size=ranks.astype(np.int32),
        bitwise=np.full(len(rows), bool(bitwise)),
        thread=np.zeros(len(rows), np.int64),
        communicator=communicator.astype(np.int32),
        ordinal=ordinal.astype(np.uint32),
        buffer=np.zeros(len(rows), np.uint64),
    )


def split(rows: list[Call], **clock_error_ns: int) -> Waiting:
    """`rank_1=5`: the stated error of rank 1's clock; the others' is 0."""
    stated = {int(name.removeprefix("rank_")): error for name, error in clock_error_ns.items()}
    return waiting(calls(rows), dict.fromkeys(range(8), 0) | stated)


def test_the_time_until_the_last_arrival_is_waiting() -> None:
    found = split([(0, 2, 5, 0, 3, 1000, 900), (1, 2, 5, 0, 3, 1600, 300), (2, 2, 5, 0, 3, 1100, 800)])
    (row,) = found.operations
    assert (row.operation, row.bitwise, row.calls) == ("allreduce", False, 3)
    assert row.waiting_seconds == pytest.approx((600 + 0 + 500) * 1e-9)
    assert row.transfer_seconds == pytest.approx((300 + 300 + 300) * 1e-9)
    (late,) = found.late_ranks
    assert (late.rank, late.times_last, late.share_last) == (1, 1, 1)
    assert late.total_seconds == pytest.approx(1100e-9)
    assert late.mean_seconds == pytest.approx(550e-9)
    assert (found.matched, found.unmatched_calls) == (1, 0)


def test_the_nth_calls_of_a_communicator_match_in_any_order() -> None:
    rows = [
        (0, 0, 1, 0, 2, 0, 10), (0, 0, 1, 1, 2, 100, 10), (1, 0, 1, 1, 2, 105, 5), (1, 0, 1, 0, 2, 4, 6),
        (0, 1, 2, 0, 2, 50, 9), (1, 1, 2, 0, 2, 58, 1),
    ]  # fmt: skip
    found = split(rows)
    assert found.matched == 3
    assert {row.operation: round(row.waiting_seconds * 1e9) for row in found.operations} == {
        "reduce": 9,
        "broadcast": 8,
    }


def test_bitwise_calls_have_a_separate_row() -> None:
    rows = [(0, ALLREDUCE, 1, 0, 2, 0, 10), (1, ALLREDUCE, 1, 0, 2, 4, 6)]
    (row,) = waiting(calls(rows, bitwise=1), {}).operations
    assert (row.operation, row.bitwise) == ("allreduce", True)


def test_incomplete_collectives_are_excluded() -> None:
    missing_rank = [(0, 0, 1, 0, 2, 0, 10)]
    other_operation = [(0, 0, 1, 1, 2, 0, 10), (1, 1, 1, 1, 2, 0, 10)]
    twice = [(0, 0, 1, 2, 2, 0, 10), (0, 0, 1, 2, 2, 5, 10)]
    found = split(missing_rank + other_operation + twice)
    assert (found.matched, found.unmatched_calls, found.operations, found.late_ranks) == (0, 5, [], [])
    assert split([]).matched == 0


def test_no_rank_waits_longer_than_its_call() -> None:
    # No rank needs to wait for the last receiver of a broadcast.
    (row,) = split([(0, BROADCAST, 1, 0, 2, 0, 10), (1, BROADCAST, 1, 0, 2, 500, 10)]).operations
    assert (round(row.waiting_seconds * 1e9), round(row.transfer_seconds * 1e9)) == (10, 10)


def test_the_stated_clock_error_is_that_of_the_two_worst_ranks() -> None:
    rows = [(rank, ALLREDUCE, 1, 0, 3, 0, 10) for rank in range(3)]
    assert split(rows, rank_1=2000, rank_2=3000).clock_error_seconds == pytest.approx(5e-6)
    assert split(rows).clock_error_seconds == 0
    assert waiting(calls(rows), {0: 0, 1: 5, 2: None}).clock_error_seconds is None
    assert waiting(calls(rows), {0: 0}).clock_error_seconds is None


@pytest.mark.parametrize("operation", [ALLREDUCE, IBARRIER])
def test_collectives_with_clock_conflicts_are_excluded(operation: int) -> None:
    jumped = 5_000_000
    rows = [
        (0, operation, 1, 0, 2, 0, 100), (1, operation, 1, 0, 2, 60, 40),
        (0, operation, 1, 1, 2, 10_000, 100), (1, operation, 1, 1, 2, 10_050 + jumped, 50),
        (0, operation, 1, 2, 2, 20_000, 100), (1, operation, 1, 2, 2, 20_060 + 2 * jumped, 40),
    ]  # fmt: skip
    found = split(rows, rank_1=1000)
    (row,) = found.operations
    assert row.calls == 2
    assert (found.matched, found.clock_conflicts, found.unmatched_calls) == (1, 2, 0)
    assert [late.times_last for late in found.late_ranks] == [1]
    (pair,) = found.clock_disagreements
    assert (pair.rank, pair.late_rank, pair.collectives) == (0, 1, 2)
    assert pair.at_least_seconds == pytest.approx((20_060 + 2 * jumped - 20_100) * 1e-9)
    # A jump within the stated error is no conflict.
    assert split(rows, rank_1=3 * jumped).clock_conflicts == 0


def test_collectives_that_need_not_wait_cause_no_clock_conflict() -> None:
    def late(operation: int) -> list[Call]:
        return [(0, operation, 1, 0, 2, 0, 10), (1, operation, 1, 0, 2, 10**9, 10)]

    for operation in (REDUCE, BROADCAST, ALLGATHERV):
        assert split(late(operation)).clock_conflicts == 0
    assert split(late(ALLREDUCE)).clock_conflicts == 1
    empty = [waiting(calls(late(operation), size=0), {}).clock_conflicts for operation in (ALLREDUCE, IBARRIER)]
    assert empty == [0, 1]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, len(NAMES) - 1), st.integers(0, 2), st.integers(0, 4), st.just(0),
            st.integers(0, 10**4), st.integers(0, 10**4),
        ),
        max_size=60,
    ),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
)  # fmt: skip
def test_nothing_is_counted_twice(rows: list[Call], sizes: tuple[int, int, int]) -> None:
    """`sizes`: of the communicators, whose ranks are 0 to size - 1."""
    rows = [(row[0] % sizes[row[2]], *row[1:4], sizes[row[2]], *row[5:]) for row in rows]
    found = split(rows)
    groups: dict[tuple[int, int], list[Call]] = {}
    for row in rows:
        groups.setdefault((row[2], row[3]), []).append(row)
    excluded = 0
    for members in groups.values():
        last = max(call[5] for call in members)
        early = any(last - call[5] - call[6] > 1000 for call in members)
        consistent = len({call[0] for call in members}) == len(members) and len({call[1] for call in members}) == 1
        first = members[0]
        if consistent and 1 < len(members) == first[4] and early and first[1] in (ALLREDUCE, IBARRIER):
            excluded += len(members)
    assert sum(row.calls for row in found.operations) + found.unmatched_calls + excluded == len(rows)
    assert (found.clock_conflicts > 0) == (excluded > 0) == bool(found.clock_disagreements)
    assert sum(late.times_last for late in found.late_ranks) == found.matched
    for operation in found.operations:
        assert operation.waiting_seconds >= 0
        assert operation.transfer_seconds >= 0
    assert sum(late.total_seconds for late in found.late_ranks) == pytest.approx(
        sum(row.waiting_seconds for row in found.operations)
    )
