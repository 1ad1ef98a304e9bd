"""The exposed communication of steps, for intervals with known results."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.profiling.analyze.exposed import (
    ExposedCommunication,
    Exposure,
    StepExposure,
    covered_ns,
    exposed_communication,
    exposure_without_calls,
)
from hvscale.profiling.analyze.steps import LoggedSteps, step_edges
from hvscale.profiling.read.events import Events, Recording
from hvscale.profiling.read.profile_file import StepSums

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


def found(made: Recording, log: LoggedSteps | None = None) -> ExposedCommunication:
    edges_ns = made.steps.get(0)
    result = exposed_communication(made, log, edges_ns)
    assert result is not None
    return result


def milliseconds(result: ExposedCommunication) -> list[tuple[float, float, float]]:
    return [
        (
            round(1e3 * step.seconds, 9),
            round(1e3 * step.exposed_seconds_at_least, 9),
            round(1e3 * step.exposed_seconds_at_most, 9),
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
    # After an overflow, one mark more may be an earlier one.
    overflowed = found(replace(recording(calls, {0: [0, 100], 1: [10, 90, 95]}), overwritten=1))
    assert (overflowed.ranks, milliseconds(overflowed)) == ([0], [(100, 10, 10)])


def test_after_an_overflow_only_steps_in_all_rings_count() -> None:
    calls = [(0, "allreduce", MAIN, 110, 120), (1, "allreduce", MAIN, 120, 150)]
    made = replace(recording(calls, {0: [-100, 0, 100, 200], 1: [110, 200]}), overwritten=1)
    result = exposed_communication(made, None, step_edges(made, None))
    assert result is not None
    assert (result.ranks, milliseconds(result)) == ([0, 1], [(95, 20, 20)])


def test_the_measurement_of_the_program_takes_precedence_over_calls() -> None:
    made = recording([(0, "allreduce", MAIN, 10, 20)], {0: [0, 100]})
    log = LoggedSteps(np.array([0.1, 0.2, 0.4]), np.full(3, np.nan), np.array([0.01, np.nan, 0.5]))
    result = found(made, log)
    assert result.basis == "measured"
    # The second step has no value; the third claims to have waited longer than it took.
    assert [(step.step, step.exposed_seconds_at_most) for step in result.steps] == [(1, 0.01), (3, 0.4)]
    assert result.mean_share_at_most == pytest.approx(0.41 / 0.5)
    silent = LoggedSteps(log.seconds, log.images, np.full(3, np.nan))
    assert found(made, silent).basis == "calls"


def test_every_figure_of_a_measurement() -> None:
    log = LoggedSteps(np.array([1.0, 1.0, 2.0, 4.0]), np.full(4, np.nan), np.array([0.5, -1.0, np.nan, 8.0]))
    assert exposure_without_calls(recording([], {}), log) == ExposedCommunication(
        basis="measured",
        ranks=[0],
        step_count=3,
        mean_step_seconds=2,
        mean_share_at_least=0.75,
        mean_share_at_most=0.75,
        median_share_at_least=0.5,
        median_share_at_most=0.5,
        steps=[
            StepExposure(step=1, seconds=1, exposed_seconds_at_least=0.5, exposed_seconds_at_most=0.5),
            StepExposure(step=2, seconds=1, exposed_seconds_at_least=0, exposed_seconds_at_most=0),
            StepExposure(step=4, seconds=4, exposed_seconds_at_least=4, exposed_seconds_at_most=4),
        ],
    )


def test_every_figure_of_counted_calls() -> None:
    """Rank 3 communicated for 9 s of its 6 s, in several threads, of which all 6 s may count."""
    sums = {
        3: StepSums(3, 6 * 10**9, 15 * 10**8, 9 * 10**9, 8),
        1: StepSums(2, 4 * 10**9, 10**9, 2 * 10**9, 8),
    }
    counted = replace(recording([], {}), step_sums=sums, has_calls=False)
    without = LoggedSteps(np.ones(2), np.ones(2), np.full(2, np.nan))
    for log in (None, without):
        assert exposed_communication(counted, log, None) == ExposedCommunication(
            basis="counters",
            ranks=[1, 3],
            step_count=2,
            mean_step_seconds=2,
            mean_share_at_least=0.25,
            mean_share_at_most=0.8,
            median_share_at_least=None,
            median_share_at_most=None,
            steps=[],
        )


@pytest.mark.parametrize(
    ("duration_ns", "collectives_ns", "share"), [(0, 0, 0), (1, 1, 1), (2, 3, 1)], ids=["no time", "1 ns", "overlap"]
)
def test_the_share_of_counted_calls_is_between_0_and_1(duration_ns: int, collectives_ns: int, share: float) -> None:
    sums = {0: StepSums(1, duration_ns, collectives_ns, collectives_ns, 8)}
    counted = exposure_without_calls(replace(recording([], {}), step_sums=sums, has_calls=False), None)
    assert counted is not None
    assert (counted.mean_share_at_least, counted.mean_share_at_most) == (share, share)


def test_steps_without_a_length_have_no_exposed_share() -> None:
    result = found(recording([(0, "allreduce", MAIN, 10, 20)], {0: [0, 0, 100]}))
    assert milliseconds(result) == [(0, 0, 0), (100, 10, 10)]
    assert (result.mean_share_at_least, result.mean_share_at_most) == pytest.approx((0.1, 0.1))
    assert (result.median_share_at_least, result.median_share_at_most) == pytest.approx((0.05, 0.05))
    none = found(recording([(0, "allreduce", MAIN, 10, 20)], {0: [0, 0]}))
    assert (none.mean_share_at_least, none.mean_share_at_most, none.median_share_at_most) == (0, 0, 0)


def test_means_are_weighted_by_the_length_of_steps_and_medians_are_not() -> None:
    calls = [
        (0, "allreduce", MAIN, 0, 50),
        (0, "allreduce", BACKGROUND, 50, 75),
        (0, "allreduce", MAIN, 300, 400),
        (0, "allreduce", BACKGROUND, 400, 480),
    ]
    result = found(recording(calls, {0: [0, 100, 200, 1000]}))
    assert result.mean_step_seconds == pytest.approx(1 / 3)
    assert result.step_count == 3
    assert (result.mean_share_at_least, result.mean_share_at_most) == pytest.approx((0.15, 0.255))
    assert (result.median_share_at_least, result.median_share_at_most) == pytest.approx((0.125, 0.225))


def test_without_marks_the_thread_is_unknown_and_without_steps_the_result() -> None:
    made = recording([(0, "allreduce", MAIN, 10, 20)], {0: [0]})
    edges_ns = BEGAN_NS + np.array([0, 100], np.int64) * 10**6
    result = exposed_communication(made, None, edges_ns)
    assert result is not None
    assert milliseconds(result) == [(100, 0, 10)]
    assert exposed_communication(made, None, None) is None


@pytest.mark.parametrize("call", [("allreduce", 0), ("allreduce", 1), ("iallreduce", MAIN)])
def test_without_marks_no_call_is_surely_exposed(call: tuple[str, int]) -> None:
    operation, thread = call
    made = recording([(0, operation, thread, 10, 20), (1, operation, thread, 30, 80)], {0: [], 1: []})
    result = exposed_communication(made, None, BEGAN_NS + np.array([0, 100], np.int64) * 10**6)
    assert result is not None
    assert (result.ranks, milliseconds(result)) == ([0], [(100, 0, 10)])


def test_without_messages_and_ranks_nothing_is_known() -> None:
    assert exposed_communication(recording([], {}), None, BEGAN_NS + np.array([0, 100], np.int64)) is None


def in_blocks(made: Recording, *blocks: list[int]) -> ExposedCommunication:
    """The exposure of rank 0 from the calls with these numbers, a block at a time."""
    events = made.load()
    exposure = Exposure(made, made.steps[0])
    exposure.begin(events)
    (part,) = events.parts
    for block in blocks:
        exposure.add(part, exposure.reduce(part, events.take(np.array(block, np.int64))))
    return exposure.result()


def test_calls_may_be_out_of_order_from_one_block_to_the_next() -> None:
    calls = [
        (0, "allreduce", BACKGROUND, 20, 60),
        (0, "allreduce", MAIN, 10, 30),
        (0, "allreduce", MAIN, 50, 70),
        (0, "allreduce", MAIN, 120, 130),
    ]
    made = recording(calls, {0: [0, 100, 200]})
    expected = [(100, 40, 60), (100, 10, 10)]
    assert milliseconds(found(made)) == expected
    for blocks in ([[0], [1], [2], [3]], [[0, 2], [3, 1]], [[1], [], [0, 2], [3]], [[3, 0, 2, 1]]):
        assert milliseconds(in_blocks(made, *blocks)) == expected, blocks


def test_a_long_call_covers_what_later_blocks_bring() -> None:
    calls = [(0, "allreduce", MAIN, 10, 290), (0, "allreduce", MAIN, 20, 30), (0, "allreduce", MAIN, 40, 50)]
    made = recording(calls, {0: [0, 100, 200, 300]})
    for blocks in ([[0], [1], [2]], [[0, 1, 2]]):
        assert milliseconds(in_blocks(made, *blocks)) == [(100, 90, 90), (100, 100, 100), (100, 90, 90)], blocks


def test_calls_before_and_after_all_steps_are_in_no_step() -> None:
    calls = [(0, "allreduce", MAIN, start, start + 10) for start in (-50, -30, 20, 210, 250)]
    made = recording(calls, {0: [0, 100, 200]})
    assert milliseconds(in_blocks(made, [0], [1], [2], [3], [4])) == [(100, 10, 10), (100, 0, 0)]


def test_another_program_of_the_rank_read_at_the_same_time_does_not_change_the_steps() -> None:
    steps = [(0, "allreduce", MAIN, start, start + 10) for start in (20, 120)]
    another = [(0, "allreduce", MAIN, start, start + 10) for start in (500, 520, 540)]
    made = recording([*steps, *another], {0: [0, 100, 200]})
    assert milliseconds(in_blocks(made, [2], [0], [3], [1], [4])) == [(100, 10, 10), (100, 10, 10)]


@given(
    st.lists(
        st.tuples(
            st.integers(-5, 35),
            st.integers(0, 20),
            st.sampled_from(OPERATIONS),
            st.sampled_from([MAIN, BACKGROUND]),
        ),
        min_size=1,
        max_size=20,
    ),
    st.lists(st.integers(1, 4), min_size=20, max_size=20),
    st.lists(st.sampled_from([MAIN, BACKGROUND]), min_size=4, max_size=4),
)
def test_bounds_from_calls_in_any_blocks_equal_counting(
    rows: list[tuple[int, int, str, int]], lengths: list[int], threads: list[int]
) -> None:
    """`lengths`: of the blocks. `threads`: those that mark the steps, of 10 ms each."""
    calls = [(0, operation, thread, start, start + length) for start, length, operation, thread in sorted(rows)]
    bounds = np.cumsum([0, *lengths])
    blocks = [list(range(first, min(last, len(calls)))) for first, last in pairwise(bounds) if first < len(calls)]
    made = recording(calls, {0: [0, 10, 20, 30]}, {0: threads})
    expected = []
    for step in range(3):
        instants = set(range(10 * step, 10 * step + 10))
        every = {instant for call in calls for instant in range(call[3], call[4])}
        own = {
            instant
            for call in calls
            for instant in range(call[3], call[4])
            if call[1] == "allreduce" and call[2] == threads[step]
        }
        expected.append((10, len(own & instants), len(every & instants)))
    assert milliseconds(in_blocks(made, *blocks)) == expected


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
