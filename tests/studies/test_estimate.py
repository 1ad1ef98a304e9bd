"""Means and intervals of few measurements, and the table made of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.statistics import estimate
from hvscale.studies.scaling.document import ScalingRun, tabulate

speeds = st.floats(1e-3, 1e6)


@given(st.lists(speeds, min_size=1, max_size=8), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(values: list[float], factor: float) -> None:
    one, other = estimate(values), estimate([factor * value for value in values])
    assert other.mean == pytest.approx(factor * one.mean)
    if one.low is None or one.high is None:
        assert (other.low, other.high) == (None, None)
    else:
        assert other.low == pytest.approx(factor * one.low, rel=1e-6)
        assert other.high == pytest.approx(factor * one.high, rel=1e-6)


@given(st.lists(speeds, min_size=2, max_size=8))
def test_the_interval_holds_the_mean_and_the_mean_lies_among_the_values(values: list[float]) -> None:
    found = estimate(values)
    assert found.low is not None
    assert found.high is not None
    slack = 1e-9 * found.mean
    assert found.low - slack <= found.mean <= found.high + slack
    assert min(values) - slack <= found.mean <= max(values) + slack


@given(st.lists(speeds, min_size=2, max_size=8))
def test_a_ratio_turned_round_has_the_interval_turned_round(ratios: list[float]) -> None:
    one, other = estimate(ratios), estimate([1 / ratio for ratio in ratios])
    assert other.mean == pytest.approx(1 / one.mean)
    assert one.low is not None
    assert other.high == pytest.approx(1 / one.low, rel=1e-6)


def test_one_measurement_tells_no_interval() -> None:
    found = estimate([5.0])
    assert (found.mean, found.low, found.high) == (5, None, None)


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_the_interval_covers_what_it_promises(repeats: int) -> None:
    draw = np.random.default_rng(7)
    found = [estimate(np.exp(draw.normal(math.log(40), 0.1, repeats)).tolist()) for _ in range(2000)]
    inside = [row.low <= 40 <= row.high for row in found if row.low is not None and row.high is not None]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def runs(by_np: dict[int, list[float | None]]) -> list[ScalingRun]:
    return [
        ScalingRun(np=np, repeat=repeat, folder="", throughput=value)
        for np, values in by_np.items()
        for repeat, value in enumerate(values, 1)
    ]


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(0.2, 2)), min_size=2, max_size=6))
def test_a_machine_that_changes_between_rounds_does_not_change_the_speed_up(rounds: list[tuple[float, float]]) -> None:
    """What slows both runs of a round alike cancels out: here only the efficiency differs, and it is the same in all rounds."""
    table = tabulate(runs({1: [mood for mood, _ in rounds], 4: [4 * 0.8 * mood for mood, _ in rounds]}), base_np=1)
    assert table[1].scaling_efficiency == pytest.approx(0.8)
    assert table[1].scaling_efficiency_low == pytest.approx(0.8)
    assert table[1].scaling_efficiency_high == pytest.approx(0.8)


def test_a_round_without_its_base_counts_in_the_throughput_alone() -> None:
    first, second = tabulate(runs({2: [10, None], 4: [15, 1000]}), base_np=2)
    assert (first.np, first.runs, first.speed_up, first.scaling_efficiency) == (2, 1, 1, 1)
    assert (second.runs, second.speed_up, second.speed_up_low) == (2, 1.5, None)
    assert second.scaling_efficiency == 0.75
    assert second.throughput == pytest.approx(math.sqrt(15_000))


def test_without_a_base_there_is_no_speed_up() -> None:
    (row,) = tabulate(runs({1: [None], 2: [20]}), base_np=1)
    assert (row.np, row.throughput, row.speed_up, row.scaling_efficiency) == (2, 20, None, None)
