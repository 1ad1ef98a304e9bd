"""Costs fitted to messages whose law is known."""

from dataclasses import replace

import numpy as np
import pytest

from hvscale.core.errors import RequestError
from hvscale.prediction.model.measured_costs import ALGORITHMS, Formula, fit_costs
from hvscale.prediction.model.samples import Samples


def samples(
    formula: Formula, np_: int, *, rate: float | None = 1.25e7, per_core: float = 0.5, **changes: object
) -> Samples:
    generator = np.random.default_rng(np_)
    sizes = np.exp(generator.uniform(np.log(1e3), np.log(1e7), 300))
    idle = generator.uniform(0, 0.03, 300)
    burst = np.minimum(idle * rate, 256 * 1024) if rate else 0.0
    seconds = formula.seconds(sizes, np_, per_core, burst) * np.exp(generator.normal(0, 0.05, 300))
    fields = {
        "np": np_,
        "nodes": np_,
        "ranks_per_core": per_core,
        "bytes": sizes,
        "seconds": seconds,
        "idle_seconds": idle,
        "agreements": np.full(100, 50e-6 * np.ceil(np.log2(np_)) * max(1, per_core) ** 1.6),
        "bytes_per_second": rate,
        "library": "Open MPI 5.0",
        "algorithm": None,
        "name": f"run-{np_}",
    }
    return Samples(**{**fields, **changes})  # type: ignore[arg-type]


RING = Formula("ring", 40e-6, 5e-10, 1.02 / 1.25e7, 0.0)


def test_the_law_is_found_and_extrapolated() -> None:
    costs = fit_costs([samples(RING, np_) for np_ in (2, 3, 4)], cores=None)
    sizes = np.geomspace(2e3, 5e6, 20)
    for np_ in (4, 32, 512):
        expected = RING.seconds(sizes, np_, 0.5)
        assert costs.message_seconds(sizes, np_) == pytest.approx(expected, rel=0.15)
    assert costs.agreement_seconds(512) == pytest.approx(9 * 50e-6)
    assert costs.largest_np == 4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_algorithm_is_told_from_the_messages(algorithm: str) -> None:
    law = Formula(algorithm, 40e-6, 5e-10, 1.02 / 1.25e7, 0.0)
    costs = fit_costs([samples(law, np_) for np_ in (2, 3, 4, 8)], cores=None)
    assert costs.formula.algorithm == algorithm


def test_ranks_that_share_cores_slow_each_other_down() -> None:
    law = Formula("ring", 40e-6, 5e-10, 1.02 / 1.25e7, 1.6)
    runs = [samples(law, np_, per_core=np_ / 2) for np_ in (2, 3, 4, 8)]
    shared, own = fit_costs(runs, 2, "ring"), fit_costs(runs, None, "ring")
    small = np.array([2e3])
    assert shared.message_seconds(small, 32) == pytest.approx(law.seconds(small, 32, 16), rel=0.35)
    assert own.message_seconds(small, 32) == pytest.approx(law.seconds(small, 32, 1), rel=0.2)
    assert shared.agreement_seconds(32) == pytest.approx(5 * 50e-6 * 16**1.6, rel=0.2)


def test_another_link_changes_the_bytes_alone() -> None:
    costs = fit_costs([samples(RING, np_) for np_ in (2, 4)], cores=None)
    faster = costs.with_link(1.25e9)
    small, large = np.array([2e3]), np.array([5e7])
    assert faster.message_seconds(large, 8)[0] < 0.3 * costs.message_seconds(large, 8)[0]
    assert faster.message_seconds(small, 8)[0] > 0.5 * costs.message_seconds(small, 8)[0]


def test_the_links_time_and_that_of_the_ranks_overlap_in_part() -> None:
    """As the sides of a right angle and the line between their ends."""
    slow_start = Formula("ring", 5e-3, 0.0, 1e-6, 0.0)
    sizes = np.array([1e3, 1e4, 1e5])
    # On two ranks, two messages and all bytes once.
    links = np.array([1e-3, 1e-2, 1e-1])
    assert slow_start.seconds(sizes, 2, 1).tolist() == pytest.approx(np.hypot(links, 1e-2).tolist())
    assert slow_start.seconds(sizes, 2, 1, burst=5e4)[-1] == pytest.approx(np.hypot(0.05, 1e-2))


def test_one_slow_message_says_little_about_larger_ones() -> None:
    law = Formula("ring", 40e-6, 5e-10, 0.0, 1.0, within_a_node=True)
    run = samples(law, 4, rate=None, nodes=1)
    sizes = np.array([2e7] * 10 + [3e7])
    seconds = law.seconds(sizes, 4, 0.5) * np.array([1.0] * 10 + [2.0])
    with_slow = replace(
        run,
        bytes=np.concatenate([run.bytes, sizes]),
        seconds=np.concatenate([run.seconds, seconds]),
        idle_seconds=np.concatenate([run.idle_seconds, np.zeros(11)]),
    )
    large = np.array([1e8])
    costs = fit_costs([with_slow], cores=None, algorithm="ring")
    assert costs.wire_seconds(large, 8) == pytest.approx(law.seconds(large, 8, 0.5), rel=0.25)


def test_ranks_outside_a_power_of_two_send_everything_twice_more() -> None:
    """Nine ranks: three rounds among eight of them."""
    counts = {name: ALGORITHMS[name](9) for name in ("recursive doubling", "halving and doubling")}
    assert [(path.messages, path.bytes, path.first) for path in counts.values()] == [(5, 5, 1), (8, 3.75, 0.5)]


def test_round_robin_runs_are_extrapolated_by_the_ranks_of_a_core() -> None:
    """From 4 to 16 ranks on two cores, the work of the cores grows as their number."""
    runs = [replace(samples(RING, np_), ranks_per_core=np_ / 2, round_robin=True) for np_ in (2, 4)]
    usual = fit_costs([replace(run, round_robin=False) for run in runs], cores=2)
    costs = fit_costs(runs, cores=2)
    assert costs.formula.crowding_exponent == pytest.approx(1, abs=0.05)
    assert usual.formula.crowding_exponent > 1.2


def test_draws_of_the_posterior_scatter_around_the_fit() -> None:
    costs = fit_costs([samples(RING, np_) for np_ in (2, 4)], cores=None)
    drawn = costs.perturbed(2000).message_seconds(np.full(2000, 1e6), 64)
    assert np.median(drawn) == pytest.approx(costs.message_seconds(np.array([1e6]), 64)[0], rel=0.05)
    assert 0 < np.std(np.log(drawn)) < 0.3


def test_larger_messages_than_the_measured_ones_are_less_certain() -> None:
    """Nothing is added up to the largest measured size, all of the error from four times that."""
    run = samples(RING, 4)
    costs = fit_costs([run], cores=None)
    assert costs.largest_bytes == run.bytes.max()
    drawn = costs.perturbed(4000)
    for times, expected in ((0.01, 0.0), (1, 0.0), (2, 0.125), (4, 0.25), (1000, 0.25)):
        sizes = np.full(4000, times * costs.largest_bytes)
        added = np.log(
            drawn.message_seconds(sizes, 64) / replace(drawn, error_of_larger=None).message_seconds(sizes, 64)
        )
        assert added.std() == pytest.approx(expected, rel=0.1)
        assert added.mean() == pytest.approx(0, abs=0.02)


def test_runs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(RequestError, match="no run contains measured all-reduces"):
        fit_costs([], cores=None)
    with pytest.raises(RequestError, match="different links"):
        fit_costs([samples(RING, 2), samples(RING, 4, bytes_per_second=1.25e8)], cores=None)
    with pytest.raises(RequestError, match="different libraries"):
        fit_costs([samples(RING, 2), samples(RING, 4, library="MPICH 4.3")], cores=None)


def test_copies_are_measured_before_messages() -> None:
    run = samples(RING, 4)
    late = np.arange(len(run.bytes)) % 5 == 0
    before = 40e-6 + 0.2e-9 * run.bytes + np.where(late, 5e-3, 0)
    costs = fit_costs([samples(RING, 2), replace(run, before_seconds=before)], cores=None)
    assert costs.copy_seconds(np.array([1e6]), 2) == pytest.approx(2 * 0.2e-3, rel=0.1)
    assert costs.handling.seconds == pytest.approx(40e-6, rel=0.3)
