"""The split of a collective's time, against arithmetic done by hand and on random calls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.profiling.waiting import Calls, waiting

NAMES = ("allreduce", "barrier")
Call = tuple[int, int, int, int, int, int, int]  # rank, operation, communicator, ordinal, size, start, duration


def calls(rows: list[Call]) -> Calls:
    return Calls(*np.array(rows, np.int64).reshape(-1, 7).T)


def test_the_time_until_the_last_arrival_is_waiting() -> None:
    found = waiting(calls([(0, 0, 5, 0, 3, 1000, 900), (1, 0, 5, 0, 3, 1600, 300), (2, 0, 5, 0, 3, 1100, 800)]), NAMES)
    (row,) = found.operations
    assert (row.operation, row.calls) == ("allreduce", 3)
    assert row.waiting_seconds == pytest.approx((600 + 0 + 500) * 1e-9)
    assert row.transfer_seconds == pytest.approx((300 + 300 + 300) * 1e-9)
    (late,) = found.late_ranks
    assert (late.rank, late.times_last, late.share_last) == (1, 1, 1)
    assert late.total_seconds == pytest.approx(1100e-9)
    assert late.mean_seconds == pytest.approx(550e-9)
    assert (found.matched, found.unmatched_calls) == (1, 0)


def test_the_nth_call_of_a_communicator_is_matched_whatever_the_order() -> None:
    rows = [
        (0, 0, 1, 0, 2, 0, 10), (0, 0, 1, 1, 2, 100, 10), (1, 0, 1, 1, 2, 105, 5), (1, 0, 1, 0, 2, 4, 6),
        (0, 1, 2, 0, 2, 50, 9), (1, 1, 2, 0, 2, 58, 1),
    ]  # fmt: skip
    found = waiting(calls(rows), NAMES)
    assert found.matched == 3
    assert {row.operation: round(row.waiting_seconds * 1e9) for row in found.operations} == {
        "allreduce": 9,
        "barrier": 8,
    }


def test_what_is_not_whole_is_left_out() -> None:
    missing_rank = [(0, 0, 1, 0, 2, 0, 10)]
    other_operation = [(0, 0, 1, 1, 2, 0, 10), (1, 1, 1, 1, 2, 0, 10)]
    twice = [(0, 0, 1, 2, 2, 0, 10), (0, 0, 1, 2, 2, 5, 10)]
    found = waiting(calls(missing_rank + other_operation + twice), NAMES)
    assert (found.matched, found.unmatched_calls, found.operations, found.late_ranks) == (0, 5, [], [])
    assert waiting(calls([]), NAMES).matched == 0


def test_no_rank_waits_longer_than_its_call() -> None:
    # Clocks that disagree: rank 0 has left before rank 1 seems to have come.
    (row,) = waiting(calls([(0, 0, 1, 0, 2, 0, 10), (1, 0, 1, 0, 2, 500, 10)]), NAMES).operations
    assert (round(row.waiting_seconds * 1e9), round(row.transfer_seconds * 1e9)) == (10, 10)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 1), st.integers(0, 2), st.integers(0, 4), st.integers(1, 4),
            st.integers(0, 10**9), st.integers(0, 10**6),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_nothing_is_counted_twice(rows: list[Call]) -> None:
    found = waiting(calls(rows), NAMES)
    counted = sum(row.calls for row in found.operations)
    assert counted + found.unmatched_calls == len(rows)
    assert sum(late.times_last for late in found.late_ranks) == found.matched
    for row in found.operations:
        assert row.waiting_seconds >= 0
        assert row.transfer_seconds >= 0
    assert sum(late.total_seconds for late in found.late_ranks) == pytest.approx(
        sum(row.waiting_seconds for row in found.operations)
    )
