"""The slowest of many ranks, drawn from recorded ones."""

from dataclasses import replace

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


def one_step(*last: float) -> Computation:
    """A recorded step in which each rank enqueues its only tensor at `last`."""
    return Computation(make_job(np.array(last)[:, None, None], [4], after=0.0), len(last))


def tail_of_20_steps(np_: int, ranks: int = 1) -> Computation:
    """20 steps of all ranks: the slowest tenth take 20 and 24 s, on average 2 s more than 20 s."""
    seconds = np.array([*range(1, 19), 24.0, 20.0]).reshape(ranks, -1, 1)
    return Computation(make_job(seconds, [4], after=0.0), np_)


def test_the_computation_after_the_last_wait_precedes_the_next_step() -> None:
    ready = np.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 5.0]], [[2.0, 1.0], [2.0, 5.0], [0.0, 1.0]]])
    job = replace(make_job(ready, [4, 4]), after=np.array([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]]))
    computation = Computation(job, 2)
    # By step, rank and tensor.
    assert computation.spans.tolist() == [[[31, 32], [62, 61]], [[13, 14], [42, 45]], [[25, 25], [50, 51]]]
    assert computation.slowest.tolist() == [[62, 61], [42, 45], [50, 51]]
    assert computation.mean.tolist() == [(32 + 62) / 2, (14 + 45) / 2, (25 + 51) / 2]


def test_the_tail_is_that_of_the_slowest_tenth() -> None:
    assert tail_of_20_steps(1).excess == 2
    # One step has no excess over itself.
    assert Computation(make_job(np.arange(10.0)[None, :, None], [4], after=0.0), 1).excess == 0


def test_ranks_beyond_the_recorded_ones_repeat_them() -> None:
    """Of a step with ranks of 1, 2 and 4 s, each set of three ranks adds 7 s of computing."""
    computation = one_step(1, 2, 4)
    for np_, sums in ((3, {7}), (6, {14}), (1, {1, 2, 4}), (2, {3, 5, 6}), (4, {8, 9, 11}), (5, {10, 12, 13})):
        computation.np = np_
        drawn = computation.draw(300, np.random.default_rng(0))
        found = np.round(drawn.compute * np_, 9)
        assert set(found) == sums
        assert all(np.mean(found == one) == pytest.approx(1 / len(sums), abs=0.1) for one in sums)
        assert drawn.ready.shape == (300, 1)
        slowest = drawn.ready[:, 0]
        if np_ == 1:
            assert (slowest == drawn.compute).all()
        elif np_ == 2:
            assert (slowest == np.where(found == 3, 2, 4)).all()
        else:
            assert (slowest == 4).all()


def test_sets_of_ranks_are_at_independent_steps() -> None:
    """Of two steps of 1 and 3 s, both sets are at the first one in a quarter of the jobs."""
    computation = Computation(make_job(np.array([[[1.0], [3.0]]]), [4], after=0.0), 2)
    drawn = computation.draw(4000, np.random.default_rng(0))
    assert set(drawn.compute) == {1, 2, 3}
    assert [np.mean(drawn.compute == one) for one in (1, 2, 3)] == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    assert (drawn.ready[:, 0] == np.where(drawn.compute == 1, 1, 3)).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_up_to_the_number_of_recorded_steps_no_rank_is_slower_than_those(ranks: int) -> None:
    drawn = tail_of_20_steps(20, ranks).draw(2000, np.random.default_rng(0))
    assert set(drawn.ready[:, 0]) <= {*range(1, 19), 20, 24}


def test_beyond_the_number_of_recorded_steps_the_slowest_rank_follows_the_tail() -> None:
    """A recording in 1024 times as many draws: ln 1024 + 0.577 mean excesses are expected."""
    drawn = tail_of_20_steps(20 * 1024).draw(4000, np.random.default_rng(0))
    assert drawn.ready.min() >= 24
    assert drawn.ready.mean() == pytest.approx(24 + 2 * (np.log(1024) + 0.577), abs=0.2)


def test_a_tail_never_makes_a_rank_faster() -> None:
    """Gumbel's distribution is below -ln b in exp(-b) of the draws: then nothing is added."""
    drawn = tail_of_20_steps(21).draw(4000, np.random.default_rng(0)).ready[:, 0]
    recorded = np.isin(drawn, [*range(1, 19), 20, 24])
    assert recorded.mean() == pytest.approx(np.exp(-21 / 20), abs=0.03)
    assert drawn.min() >= 1
