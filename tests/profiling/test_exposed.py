"""The exposed communication of steps, for intervals with known results."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.profiling.analyze.exposed import ExposedCommunication, covered_ns, exposed_communication
from hvscale.profiling.analyze.steps import StepLog
from hvscale.profiling.read.events import Events, Recording

BEGAN_NS = 1_700_000_000_123_456_789  # a realistic time, with more digits than a float has
MAIN, BACKGROUND = 3, 5
Call = tuple[int, str, int, int, int]  # rank, operation, thread, start, end in milliseconds since the first mark
OPERATIONS = ("allreduce", "iallreduce")


def recording(calls: list[Call], marks: dict[int, list[int]], threads: dict[int, list[int]] | None = None) -> Recording:
    def column(values: list[int]) -> np.ndarray:
        return np.array(values, np.int64)

    events = Events(
        operations=OPERATIONS,
        rank=column([call[0] for call in calls]).astype(np.int32),
        operation=column([OPERATIONS.index(call[1]) for call in calls]).astype(np.uint8),
        bytes=column([8] * len(calls)),
        start_ns=BEGAN_NS + column([call[3] for call in calls]) * 10**6,
        duration_ns=column([call[4] - call[3] for call in calls]) * 10**6,
        communicator_size=column([2] * len(calls)).astype(np.int32),
        bitwise=np.zeros(len(calls), np.bool_),
        thread=column([call[2] for call in calls]),
    )
    return Recording(
        "hvprof",
        events,
        2,
        sorted(marks),
        steps={rank: BEGAN_NS + column(times) * 10**6 for rank, times in marks.items()},
        step_threads={rank: column((threads or {}).get(rank, [MAIN] * len(times))) for rank, times in marks.items()},
    )


def found(made: Recording, log: StepLog | None = None) -> ExposedCommunication:
    edges_ns = made.steps.get(0)
    result = exposed_communication(made, log, edges_ns)
    assert result is not None
    return result


def milliseconds(result: ExposedCommunication) -> list[tuple[float, float, float]]:
    return [
        (
            round(1e3 * step.seconds, 6),
            round(1e3 * step.exposed_seconds_at_least, 6),
            round(1e3 * step.exposed_seconds_at_most, 6),
        )
        for step in result.steps
    ]


def test_blocking_calls_on_the_marking_thread_are_fully_exposed() -> None:
    calls = [
        (0, "allreduce", MAIN, 10, 30),
        (0, "allreduce", MAIN, 95, 120),  # across the edge of a step: each step has its part
        (0, "allreduce", MAIN, 190, 260),  # runs past the last mark
    ]
    result = found(recording(calls, {0: [0, 100, 200]}))
    assert milliseconds(result) == [(100, 25, 25), (100, 30, 30)]
    assert (result.basis, result.ranks) == ("calls", [0])
    assert result.mean_share_at_least == result.mean_share_at_most == pytest.approx(0.275)
    assert result.median_share_at_least == pytest.approx(0.275)


def test_only_the_upper_bound_includes_other_threads_and_non_blocking_calls() -> None:
    calls = [
        (0, "allreduce", BACKGROUND, 10, 40),
        (0, "allreduce", MAIN, 30, 50),  # at the same time as another thread's
        (0, "iallreduce", MAIN, 60, 90),
    ]
    assert milliseconds(found(recording(calls, {0: [0, 100]}))) == [(100, 20, 70)]


def test_the_marking_thread_may_change() -> None:
    calls = [(0, "allreduce", MAIN, 10, 20), (0, "allreduce", MAIN, 110, 120), (0, "allreduce", BACKGROUND, 130, 150)]
    made = recording(calls, {0: [0, 100, 200]}, {0: [MAIN, BACKGROUND, MAIN]})
    assert milliseconds(found(made)) == [(100, 10, 10), (100, 20, 30)]


def test_a_step_is_a_mean_over_the_ranks_that_marked_the_same_steps() -> None:
    calls = [(0, "allreduce", MAIN, 10, 20), (1, "allreduce", MAIN, 20, 50)]
    assert milliseconds(found(recording(calls, {0: [0, 100], 1: [10, 90]}))) == [(90, 20, 20)]
    # Stopped between two ranks' marks.
    one_more = found(recording(calls, {0: [0, 100], 1: [10, 90, 95]}))
    assert (one_more.ranks, milliseconds(one_more)) == ([0, 1], [(90, 20, 20)])
    two_more = found(recording(calls, {0: [0, 100], 1: [10, 90, 95, 97]}))
    assert (two_more.ranks, milliseconds(two_more)) == ([0], [(100, 10, 10)])


def test_the_measurement_of_the_program_takes_precedence_over_calls() -> None:
    made = recording([(0, "allreduce", MAIN, 10, 20)], {0: [0, 100]})
    log = StepLog(np.array([0.1, 0.2, 0.4]), np.full(3, np.nan), np.array([0.01, np.nan, 0.5]))
    result = found(made, log)
    assert result.basis == "measured"
    # The second step has no value; the third claims to have waited longer than it took.
    assert [(step.step, step.exposed_seconds_at_most) for step in result.steps] == [(1, 0.01), (3, 0.4)]
    assert result.mean_share_at_most == pytest.approx(0.41 / 0.5)
    silent = StepLog(log.seconds, log.images, np.full(3, np.nan))
    assert found(made, silent).basis == "calls"


def test_without_marks_the_thread_is_unknown_and_without_steps_the_result() -> None:
    made = recording([(0, "allreduce", MAIN, 10, 20)], {0: [0]})
    edges_ns = BEGAN_NS + np.array([0, 100], np.int64) * 10**6
    result = exposed_communication(made, None, edges_ns)
    assert result is not None
    assert milliseconds(result) == [(100, 0, 10)]
    assert exposed_communication(made, None, None) is None


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=20),
    st.lists(st.integers(0, 70), min_size=2, max_size=6),
)
def test_covered_time_equals_counting(intervals: list[tuple[int, int]], edges: list[int]) -> None:
    intervals, edges = sorted(intervals), sorted(edges)
    start = np.array([begin for begin, _ in intervals], np.int64)
    end = start + np.array([length for _, length in intervals], np.int64)
    covered = {instant for begin, length in intervals for instant in range(begin, begin + length)}
    expected = [len(covered & set(range(low, high))) for low, high in pairwise(edges)]
    shifted = covered_ns(BEGAN_NS + start, BEGAN_NS + end, BEGAN_NS + np.array(edges, np.int64))
    assert shifted.tolist() == pytest.approx(expected)
