"""A rank's schedule, from synthetic recordings."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from hvscale.prediction.replay.schedule import Enqueue, RankSchedule, Wait
from hvscale.profiling.analyze.gradients import JobGradients, RankSteps
from hvscale.profiling.read.gradients_file import GpuTimes, GradientsHeader, GradientStep, GradientTensor, RankGradients


def tensor(name: str, group: str | None = None) -> GradientTensor:
    return GradientTensor(name=name, dtype="float32", bytes=4, group=group, process_set=0, device="cpu")


def step(number: int, enqueued: list[float], waits: list[tuple[int, float, float]], tensors: list[int]) -> GradientStep:
    """Each of `waits`: number of enqueues before it, start, and seconds inside synchronize()."""
    positions = np.array([position for position, _, _ in waits])
    begins, blocked = np.array([begin for _, begin, _ in waits]), np.array([seconds for *_, seconds in waits])
    handles = np.diff(positions, prepend=0)
    return GradientStep(
        number, 1.0, np.array(tensors), np.array(enqueued), positions, handles, begins, begins + blocked, blocked
    )


def job(*ranks: tuple[list[GradientTensor], list[GradientStep]]) -> JobGradients:
    made = []
    for number, (tensors, steps) in enumerate(ranks):
        header = GradientsHeader(version=1, rank=number, size=len(ranks), local_size=1, horovod=None, torch=None)
        made.append(RankSteps(RankGradients(header, tensors, steps, None), {one.number: one for one in steps}))
    return JobGradients(made, [one.number for one in ranks[0][1]], 0, [])


TWO_TENSORS = [tensor("a"), tensor("b")]
WAIT_AT_THE_END = [step(number, [0.1, 0.2 + 0.01 * number], [(2, 0.3, 0.5)], [0, 1]) for number in range(1, 5)]


def test_compute_time_after_a_wait_starts_at_its_end() -> None:
    (first,) = islice(RankSchedule(job((TWO_TENSORS, WAIT_AT_THE_END[:1])), 0), 1)
    assert first.actions == [Enqueue(0.1, (0,)), Enqueue(0.2 + 0.01, (1,)), Wait(0.3, 2)]
    assert first.compute_seconds == pytest.approx(0.2)  # the step takes 1 s, and the wait ends after 0.8 s


def test_alternating_all_reduces_and_waits_keep_their_gaps() -> None:
    by_hand = step(1, [0.125, 0.5], [(1, 0.25, 0.125), (2, 0.625, 0.125)], [0, 1])
    (first,) = islice(RankSchedule(job((TWO_TENSORS, [by_hand])), 0), 1)
    expected = [Enqueue(0.125, (0,)), Wait(0.25, 1), Enqueue(0.125, (1,)), Wait(0.25, 1)]
    assert first.actions == expected
    assert first.compute_seconds == 0.25


def test_a_group_is_enqueued_together() -> None:
    tensors = [tensor("g[0]", "g"), tensor("g[1]", "g"), tensor("a")]
    one = step(1, [0.1, 0.1, 0.2], [(3, 0.3, 0.1)], [0, 1, 2])
    (first,) = islice(RankSchedule(job((tensors, [one])), 0), 1)
    assert first.actions[:2] == [Enqueue(0.1, (0, 1)), Enqueue(0.2, (2,))]


def test_the_moments_of_a_gpu_are_kept_beside_those_of_the_host() -> None:
    tensors = [tensor("a"), tensor("g[0]", "g"), tensor("g[1]", "g"), tensor("on the CPU")]
    on_host = step(1, [0.1, 0.2, 0.2, 0.3], [(4, 0.4, 0.1)], [0, 1, 2, 3])
    timed = replace(on_host, on_gpu=GpuTimes(np.array([0.15, 0.32, 0.35, np.nan]), 0.25))
    (first,) = islice(RankSchedule(job((tensors, [timed])), 0), 1)
    # A group's gradients are computed when the last of them is.
    assert first.actions[:3] == [Enqueue(0.1, (0,), 0.15), Enqueue(0.2, (1, 2), 0.35), Enqueue(0.3, (3,), None)]
    assert first.gpu_seconds == 0.25


def test_a_gpu_is_not_kept_busy_beyond_the_recorded_step() -> None:
    timed = replace(WAIT_AT_THE_END[0], on_gpu=GpuTimes(np.array([0.1, 1e9]), 1e9))
    (first,) = islice(RankSchedule(job((TWO_TENSORS, [timed])), 0), 1)
    assert [action.computed for action in first.actions if isinstance(action, Enqueue)] == [0.1, 1.0]
    assert first.gpu_seconds == 1.0


def test_a_replay_repeats_the_steps_that_a_gpu_timed() -> None:
    timed = [
        replace(one, on_gpu=GpuTimes(np.array([0.1, 0.2]), 0.1) if one.number % 2 == 0 else None)
        for one in WAIT_AT_THE_END
    ]
    assert job((TWO_TENSORS, timed)).timed_on_gpu.numbers == [2, 4]
    assert job((TWO_TENSORS, WAIT_AT_THE_END)).timed_on_gpu.numbers == [1, 2, 3, 4]


def test_tensor_numbers_agree_if_ranks_describe_tensors_in_different_orders() -> None:
    other = [step(number, [0.1, 0.2], [(2, 0.3, 0.5)], [0, 1]) for number in range(1, 5)]
    gradients = job((TWO_TENSORS, WAIT_AT_THE_END), ([TWO_TENSORS[1], TWO_TENSORS[0]], other))
    (first,) = islice(RankSchedule(gradients, 1), 1)
    assert first.actions[:2] == [Enqueue(0.1, (1,)), Enqueue(0.2, (0,))]


def test_recorded_ranks_start_at_the_first_step_and_repeat_all_steps() -> None:
    steps = list(islice(RankSchedule(job((TWO_TENSORS, WAIT_AT_THE_END)), 0), 6))
    assert [one.actions[1].seconds for one in steps] == pytest.approx([0.21, 0.22, 0.23, 0.24, 0.21, 0.22])


def test_additional_ranks_start_at_different_but_fixed_steps() -> None:
    gradients = job((TWO_TENSORS, WAIT_AT_THE_END))
    starts = [RankSchedule(gradients, rank).first for rank in range(64)]
    assert starts[0] == 0
    assert starts == [RankSchedule(gradients, rank).first for rank in range(64)]
    assert set(starts) == {0, 1, 2, 3}
    # A rank has the same start in replays of any size.
    assert RankSchedule(gradients, 5).first == starts[5]


def test_times_are_never_negative() -> None:
    """An enqueue may return after the next wait began, in another thread."""
    odd = step(1, [0.5, 0.1], [(2, 0.05, 0.9)], [0, 1])
    (first,) = islice(RankSchedule(job((TWO_TENSORS, [odd])), 0), 1)
    assert all(action.seconds >= 0 for action in first.actions)
    assert first.compute_seconds >= 0
