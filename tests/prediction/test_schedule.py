"""A rank's schedule, from recordings made by hand."""

from itertools import islice

import numpy as np
import pytest

from hvscale.prediction.schedule import Enqueue, RankSchedule, Wait
from hvscale.profiling.analyze.gradients import JobGradients, RankSteps
from hvscale.profiling.read.gradients_file import GradientStep, GradientTensor, Header, RankGradients


def tensor(name: str, group: str | None = None) -> GradientTensor:
    return GradientTensor(name=name, dtype="float32", bytes=4, group=group, process_set=0, device="cpu")


def step(number: int, enqueued: list[float], waits: list[tuple[int, float, float]], tensors: list[int]) -> GradientStep:
    """`waits`: after how many enqueues, begin, and seconds inside synchronize()."""
    positions = np.array([position for position, _, _ in waits])
    begins, blocked = np.array([begin for _, begin, _ in waits]), np.array([seconds for *_, seconds in waits])
    handles = np.diff(positions, prepend=0)
    return GradientStep(
        number, 1.0, np.array(tensors), np.array(enqueued), positions, handles, begins, begins + blocked, blocked
    )


def job(*ranks: tuple[list[GradientTensor], list[GradientStep]]) -> JobGradients:
    made = []
    for number, (tensors, steps) in enumerate(ranks):
        header = Header(version=1, rank=number, size=len(ranks), local_size=1, horovod=None, torch=None)
        made.append(RankSteps(RankGradients(header, tensors, steps, None), {one.number: one for one in steps}))
    return JobGradients(made, [one.number for one in ranks[0][1]], 0, [])


TWO = [tensor("a"), tensor("b")]
AT_THE_END = [step(number, [0.1, 0.2 + 0.01 * number], [(2, 0.3, 0.5)], [0, 1]) for number in range(1, 5)]


def test_a_wait_starts_the_clock_anew() -> None:
    (first,) = islice(RankSchedule(job((TWO, AT_THE_END[:1])), 0), 1)
    assert first.actions == [Enqueue(0.1, (0,)), Enqueue(0.2 + 0.01, (1,)), Wait(0.3, 2)]
    assert first.compute_seconds == pytest.approx(0.2)  # a step of 1 s, of which 0.8 s pass until the wait's end


def test_all_reduces_one_by_one_keep_the_time_between_them() -> None:
    by_hand = step(1, [0.125, 0.5], [(1, 0.25, 0.125), (2, 0.625, 0.125)], [0, 1])
    (first,) = islice(RankSchedule(job((TWO, [by_hand])), 0), 1)
    expected = [Enqueue(0.125, (0,)), Wait(0.25, 1), Enqueue(0.125, (1,)), Wait(0.25, 1)]
    assert first.actions == expected
    assert first.compute_seconds == 0.25


def test_a_group_is_enqueued_at_once() -> None:
    tensors = [tensor("g[0]", "g"), tensor("g[1]", "g"), tensor("a")]
    one = step(1, [0.1, 0.1, 0.2], [(3, 0.3, 0.1)], [0, 1, 2])
    (first,) = islice(RankSchedule(job((tensors, [one])), 0), 1)
    assert first.actions[:2] == [Enqueue(0.1, (0, 1)), Enqueue(0.2, (2,))]


def test_tensors_are_numbered_alike_where_a_rank_describes_them_in_another_order() -> None:
    other = [step(number, [0.1, 0.2], [(2, 0.3, 0.5)], [0, 1]) for number in range(1, 5)]
    gradients = job((TWO, AT_THE_END), ([TWO[1], TWO[0]], other))
    (first,) = islice(RankSchedule(gradients, 1), 1)
    assert first.actions[:2] == [Enqueue(0.1, (1,)), Enqueue(0.2, (0,))]


def test_the_recorded_ranks_begin_at_the_first_step_and_repeat_it_after_the_last() -> None:
    steps = list(islice(RankSchedule(job((TWO, AT_THE_END)), 0), 6))
    assert [one.actions[1].seconds for one in steps] == pytest.approx([0.21, 0.22, 0.23, 0.24, 0.21, 0.22])


def test_more_ranks_begin_elsewhere_and_always_in_the_same_place() -> None:
    gradients = job((TWO, AT_THE_END))
    starts = [RankSchedule(gradients, rank).first for rank in range(64)]
    assert starts[0] == 0
    assert starts == [RankSchedule(gradients, rank).first for rank in range(64)]
    assert set(starts) == {0, 1, 2, 3}
    # The first ranks of a larger replay do what those of a smaller one do.
    assert RankSchedule(gradients, 5).first == starts[5]


def test_times_are_never_negative() -> None:
    """An enqueue may return after the next wait began, in another thread."""
    odd = step(1, [0.5, 0.1], [(2, 0.05, 0.9)], [0, 1])
    (first,) = islice(RankSchedule(job((TWO, [odd])), 0), 1)
    assert all(action.seconds >= 0 for action in first.actions)
    assert first.compute_seconds >= 0
