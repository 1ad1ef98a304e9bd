"""How messages slow computing down: the slope over recordings, and its effect on a job."""

from dataclasses import replace

import numpy as np
import pytest

from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.horovod_loop import simulate
from hvscale.prediction.model.slowed_computing import (
    MAX_LOST_SPEED,
    Computing,
    RecordedComputing,
    lost_speed,
    stretched,
)
from tests.prediction.model.jobs import SimpleCosts, make_job, regular_job

MB = 1_000_000
# Five gradients, one each 10 ms, and 10 ms of computing after the last one.
JOB = regular_job([10 * MB] * 5)
SETTINGS = HorovodSettings(cycle_seconds=1e-3, fusion_bytes=64 * MB)
COSTS = SimpleCosts(bytes_per_second=2e9)


def recordings(*pairs: tuple[float, float]) -> list[RecordedComputing]:
    return [RecordedComputing(computing, hidden) for computing, hidden in pairs]


def test_the_slope_is_the_lost_share_of_speed() -> None:
    assert lost_speed(recordings((1.0, 0.0), (1.1, 0.2), (1.2, 0.4))) == pytest.approx(0.5)
    assert lost_speed(recordings((1.0, 0.0), (2.0, 0.5))) == MAX_LOST_SPEED


def test_what_is_too_little_to_show_a_slow_down_is_a_share_of_the_computing() -> None:
    """40 ms of hidden messages say nothing for steps of 1 s, and much for steps of 100 ms."""
    assert lost_speed(recordings((1.0, 0.0), (1.0, 0.04))) is None
    assert lost_speed(recordings((0.10, 0.0), (0.12, 0.04))) == pytest.approx(0.5)


@pytest.mark.parametrize("pairs", [((1.0, 0.3),), ((1.0, 0.30), (1.2, 0.31))])
def test_recordings_that_hide_alike_show_nothing(pairs: tuple[tuple[float, float], ...]) -> None:
    assert lost_speed(recordings(*pairs)) is None


@pytest.mark.parametrize("computing", [1.03, 0.8])
def test_a_difference_within_that_of_two_starts_is_no_slow_down(computing: float) -> None:
    assert lost_speed(recordings((1.0, 0.0), (computing, 0.4))) == 0


def test_a_job_without_a_measured_slow_down_computes_as_recorded() -> None:
    computing = Computing(JOB, None, hidden_seconds=0.01)
    assert computing.alone is JOB
    assert computing.at(SETTINGS, COSTS, 8) is JOB


def test_only_the_time_between_gradients_is_stretched() -> None:
    slowed = Computing(JOB, 0.5).at(SETTINGS, COSTS, 8)
    assert (slowed.ready.min(axis=2) == JOB.ready.min(axis=2)).all()
    assert (slowed.after == JOB.after).all()
    assert slowed.compute_seconds > JOB.compute_seconds


def test_the_slowed_job_hides_the_messages_that_slow_it() -> None:
    computing = Computing(JOB, 0.5)
    slowed = computing.at(SETTINGS, COSTS, 8)
    hidden = simulate(slowed, SETTINGS, COSTS, 8, chains=16, steps=12).hidden.mean()
    assert slowed.compute_seconds - JOB.compute_seconds == pytest.approx(0.5 * hidden, rel=0.05)


def test_without_its_own_messages_a_recorded_job_is_faster() -> None:
    computing = Computing(JOB, 0.5, hidden_seconds=0.02)
    assert computing.alone.compute_seconds == pytest.approx(JOB.compute_seconds - 0.01)
    # Messages that hide as much as the recorded ones give the recorded job again.
    assert np.allclose(Computing(computing.alone, 0.5, -0.02).alone.ready, JOB.ready)


def test_a_rank_alone_is_not_slowed() -> None:
    assert Computing(JOB, 0.5).at(SETTINGS, COSTS, 1) is JOB


def test_two_ranks_are_slowed_by_the_messages_that_they_hide() -> None:
    """Four of five messages of 5 ms are hidden: half of their time is lost."""
    eager = HorovodSettings(cycle_seconds=0, fusion_bytes=64 * MB)
    slowed = Computing(JOB, 0.5).at(eager, COSTS, 2)
    assert slowed.compute_seconds == pytest.approx(JOB.compute_seconds + 0.010)


def test_each_step_of_each_rank_is_stretched_from_its_own_first_gradient() -> None:
    """The steps take 2, 2, 4 and 2 s after their first gradients: 2.5 s more double them."""
    job = make_job(np.array([[[3.0, 1.0], [2.0, 4.0]], [[1.0, 5.0], [0.0, 2.0]]]), [8, 8])
    assert stretched(job, 2.5).ready.tolist() == [[[5, 1], [2, 6]], [[1, 9], [0, 4]]]
    assert stretched(job, -1.25).ready.tolist() == [[[2, 1], [2, 3]], [[1, 3], [0, 1]]]
    # At least a tenth remains.
    assert np.allclose(stretched(job, -2.5).ready, [[[1.2, 1], [2, 2.2]], [[1, 1.4], [0, 0.2]]])


def test_a_job_with_one_gradient_has_no_time_to_stretch() -> None:
    job = regular_job([MB])
    assert stretched(job, 1.0) is job


@pytest.mark.parametrize(("seconds", "enqueued"), [(-4.0, [1, 6]), (4.0, [1, 9])])
def test_a_host_never_enqueues_after_its_gpu_has_computed(seconds: float, enqueued: list[float]) -> None:
    job = replace(make_job(np.array([[[2.0, 10.0]]]), [MB] * 2), enqueued=np.array([[[1.0, 9.0]]]))
    found = stretched(job, seconds)
    assert found.enqueued is not None
    assert (found.ready.tolist(), found.enqueued.tolist()) == ([[[2, 10 + seconds]]], [[enqueued]])
