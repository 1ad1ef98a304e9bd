"""How messages slow computing down: the slope over recordings, and its effect on a job."""

import numpy as np
import pytest

from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.horovod_loop import simulate
from hvscale.prediction.model.slowed_computing import MAX_LOST_SPEED, Computing, RecordedComputing, lost_speed
from tests.prediction.model.jobs import SimpleCosts, regular_job

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
