"""The slowest of many ranks, drawn from recorded ones."""

import numpy as np
import pytest

from hvscale.prediction.model.computation import Computation
from tests.prediction.model.jobs import make_job


def make(ranks: int, steps: int) -> Computation:
    generator = np.random.default_rng(5)
    ready = 1 + generator.exponential(0.1, (ranks, steps, 1)) * np.array([0.5, 1.0])
    return Computation(make_job(ready, [4, 4], after=0.0), ranks)


def test_on_the_recorded_ranks_the_recorded_steps_are_drawn() -> None:
    computation = make(3, 20)
    drawn = computation.draw(4000, np.random.default_rng(0))
    assert set(drawn.ready[:, 1]) <= set(computation.slowest[:, 1])
    assert drawn.ready[:, 1].mean() == pytest.approx(computation.slowest[:, 1].mean(), rel=0.01)
    assert drawn.compute.mean() == pytest.approx(computation.mean.mean(), rel=0.01)


@pytest.mark.parametrize("np_", [1, 2])
def test_fewer_ranks_are_some_of_the_recorded_ones(np_: int) -> None:
    computation = make(3, 20)
    computation.np = np_
    drawn = computation.draw(4000, np.random.default_rng(0)).ready[:, 1]
    every = computation.spans[:, :, 1]
    assert set(drawn) <= set(every.ravel())
    expected = (
        every.mean() if np_ == 1 else np.mean([every[:, pair].max(axis=1).mean() for pair in ([0, 1], [0, 2], [1, 2])])
    )
    assert drawn.mean() == pytest.approx(expected, rel=0.01)


def test_more_ranks_wait_longer_and_beyond_the_recording_the_tail_grows() -> None:
    computation = make(2, 50)
    means = []
    for np_ in (2, 8, 64, 512, 4096):
        computation.np = np_
        means.append(computation.draw(3000, np.random.default_rng(0)).ready[:, 1].mean())
    assert means == sorted(means)
    # An exponential tail grows by its mean with every factor e of ranks.
    assert means[-1] - means[-2] == pytest.approx(computation.excess * np.log(8), rel=0.15)
