"""Averages and confidence intervals: their properties, and comparison with SciPy."""

import math
import statistics
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hvscale.core.statistics import (
    CHUNK_VALUES,
    RESAMPLES,
    Estimate,
    as_columns,
    box,
    estimate,
    modified_z_scores,
    overhead,
    percent,
    percentile_interval,
    poisson_tail,
    ratio,
    resampled_means,
    resampled_medians,
    student,
    summarise,
    welch_ratio,
)
from hvscale.core.units import MIB

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
def test_the_interval_contains_the_mean_which_lies_among_the_values(values: list[float]) -> None:
    found = estimate(values)
    assert found.low is not None
    assert found.high is not None
    slack = 1e-9 * found.mean
    assert found.low - slack <= found.mean <= found.high + slack
    assert min(values) - slack <= found.mean <= max(values) + slack


@given(st.lists(speeds, min_size=2, max_size=8))
def test_an_inverse_ratio_has_the_inverse_interval(ratios: list[float]) -> None:
    one, other = estimate(ratios), estimate([1 / ratio for ratio in ratios])
    assert other.mean == pytest.approx(1 / one.mean)
    assert one.low is not None
    assert other.high == pytest.approx(1 / one.low, rel=1e-6)


def test_one_measurement_gives_no_interval() -> None:
    found = estimate([5.0])
    assert (found.mean, found.low, found.high) == (5, None, None)


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_the_interval_has_its_nominal_coverage(repeats: int) -> None:
    draw = np.random.default_rng(7)
    found = [estimate(np.exp(draw.normal(math.log(40), 0.1, repeats)).tolist()) for _ in range(2000)]
    inside = [row.low <= 40 <= row.high for row in found if row.low is not None and row.high is not None]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


@given(st.lists(speeds, min_size=2, max_size=8), st.lists(speeds, min_size=2, max_size=8))
def test_an_inverse_ratio_of_two_groups_has_the_inverse_interval(first: list[float], second: list[float]) -> None:
    one, other = welch_ratio(first, second), welch_ratio(second, first)
    assert one.low is not None
    assert one.high is not None
    assert other.low is not None
    assert other.mean == pytest.approx(1 / one.mean)
    assert other.low * one.high == pytest.approx(1, rel=1e-6)
    assert one.low <= one.mean <= one.high


def test_student_and_welch_intervals_equal_those_of_scipy() -> None:
    draw = np.random.default_rng(3)
    first, second = draw.normal(10, 1, 5), draw.normal(11, 3, 7)
    mean, low, high = student(first)
    reference = stats.ttest_1samp(first, 0).confidence_interval(0.95)
    assert (mean, low, high) == pytest.approx((first.mean(), reference.low, reference.high))
    found = welch_ratio(np.exp(first).tolist(), np.exp(second).tolist())
    reference = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(reference.low), math.exp(reference.high)))


@given(st.lists(speeds, min_size=2, max_size=8), st.floats(0.5, 0.999))
def test_a_higher_confidence_gives_a_wider_interval(values: list[float], confidence: float) -> None:
    _, low, high = student(values, confidence)
    _, lower, higher = student(values, (1 + confidence) / 2)
    assert None not in (low, high, lower, higher)
    assert lower <= low <= high <= higher  # type: ignore[operator]


def test_an_interval_has_the_confidence_that_is_asked_for() -> None:
    """Of 0 and 2 the standard error is 1; t is 6.314 for one degree of freedom and 90 %."""
    found = estimate([1.0, math.exp(2)], 0.9)
    assert (found.low, found.high) == pytest.approx((math.exp(1 - 6.313752), math.exp(1 + 6.313752)))


def test_the_interval_of_groups_that_hardly_vary() -> None:
    """Both have a variance of 0.0002 and two values: t is 4.303 for two degrees of freedom."""
    group = [1.0, math.exp(0.02)]
    assert welch_ratio(group, group).high == pytest.approx(math.exp(4.302653 * math.sqrt(0.0002)))


def test_one_value_has_no_interval() -> None:
    assert student([5.0]) == (5, None, None)
    assert (welch_ratio([2.0], [1.0, 1.0]).low, welch_ratio([2.0], [1.0, 1.0]).high) == (None, None)


@given(st.lists(st.tuples(speeds, st.floats(1, 100)), min_size=1, max_size=20), st.integers(0, 3))
def test_resampled_means_lie_among_the_blocks_and_are_reproducible(
    blocks: list[tuple[float, float]], seed: int
) -> None:
    sums, weights = np.array([rate * weight for rate, weight in blocks]), np.array([weight for _, weight in blocks])
    found = resampled_means(sums, weights, seed)
    assert (found == resampled_means(sums, weights, seed)).all()
    rates = sums / weights
    assert rates.min() * (1 - 1e-9) <= found.min() <= found.max() <= rates.max() * (1 + 1e-9)


def test_resampled_means_have_the_standard_error_of_a_mean() -> None:
    values = np.random.default_rng(5).normal(10, 2, 64)
    found = resampled_means(values, np.ones(64), 0)
    assert found.std() == pytest.approx(values.std() / 8, rel=0.05)
    low, high = percentile_interval(found)
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 8, rel=0.1)


@given(st.lists(st.lists(speeds, min_size=2, max_size=2), min_size=1, max_size=9))
def test_resampled_medians_lie_among_the_rounds(rounds: list[list[float]]) -> None:
    values = np.array(rounds)
    found = resampled_medians(values)
    assert (found >= values.min(axis=0)).all()
    assert (found <= values.max(axis=0)).all()


def test_resampled_medians_are_the_same_each_time() -> None:
    rounds = np.random.default_rng(4).normal(10, 1, (9, 2))
    assert (resampled_medians(rounds) == resampled_medians(rounds)).all()


@pytest.mark.parametrize("variants", [1, 2, 3])
def test_resampled_medians_in_chunks_are_those_of_one_draw(variants: int) -> None:
    rounds = np.random.default_rng(4).normal(10, 1, (501, variants))
    assert RESAMPLES * rounds.size > CHUNK_VALUES
    drawn = np.random.default_rng(0).integers(len(rounds), size=(RESAMPLES, len(rounds)))
    assert (resampled_medians(rounds) == np.median(rounds[drawn], axis=1)).all()


def test_resampled_medians_of_many_rounds_take_little_memory() -> None:
    rounds = np.random.default_rng(4).normal(10, 1, (2000, 2))
    tracemalloc.start()
    resampled_medians(rounds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * MIB


seconds = st.floats(1e-6, 1e6)


@given(st.lists(seconds, min_size=2, max_size=40))
def test_a_box_follows_its_definition(values: list[float]) -> None:
    found = box(values)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    assert (found.quartile_low, found.median, found.quartile_high) == pytest.approx((low, middle, high), rel=1e-12)
    reach = 1.5 * (found.quartile_high - found.quartile_low)
    beyond = [value for value in values if not found.quartile_low - reach <= value <= found.quartile_high + reach]
    assert found.outliers == sorted(beyond)
    assert found.whisker_low <= found.quartile_low
    assert found.whisker_high >= found.quartile_high
    inside = [value for value in values if value not in found.outliers]
    assert all(found.whisker_low <= value <= found.whisker_high for value in inside)


def test_the_box_of_one_value_is_that_value() -> None:
    assert set(box([3.0]).model_dump(exclude={"outliers"}).values()) == {3.0}


def test_overhead_and_its_interval_equal_a_paired_bootstrap() -> None:
    generator = np.random.default_rng(1)
    base = generator.normal(10, 0.2, 12)
    slowdown = generator.normal(0, 0.5, 12)  # of the machine, equal for both in a round
    values = 1.07 * (base + slowdown) + generator.normal(0, 0.1, 12)
    base += slowdown
    found = overhead(dict(enumerate(values)), dict(enumerate(base)))
    assert found is not None
    assert found.percent_low is not None
    assert found.percent_high is not None
    assert found.percent == pytest.approx(100 * (np.median(values) / np.median(base) - 1))
    reference = stats.bootstrap(
        (values, base),
        lambda a, b, axis: 100 * (np.median(a, axis=axis) / np.median(b, axis=axis) - 1),
        paired=True,
        method="percentile",
        n_resamples=10_000,
        rng=2,
    ).confidence_interval
    width = reference.high - reference.low
    assert found.percent_low == pytest.approx(reference.low, abs=0.1 * width)
    assert found.percent_high == pytest.approx(reference.high, abs=0.1 * width)


def test_overhead_uses_only_rounds_that_both_have() -> None:
    assert overhead({1: 2.0}, {2: 1.0}) is None
    one = overhead({1: 3.0, 2: 100.0}, {1: 2.0, 3: 1.0})
    assert one is not None
    assert (one.percent, one.percent_low, one.percent_high) == (50, None, None)


@pytest.mark.parametrize(("rounds", "confidence", "known"), [(5, 0.95, False), (6, 0.95, True), (6, 0.98, False)])
def test_too_few_rounds_give_no_bootstrap_interval(rounds: int, confidence: float, known: bool) -> None:
    """Of two equal placements, an interval of two rounds had called every second pair different."""
    found = overhead(dict.fromkeys(range(rounds), 2.0), dict.fromkeys(range(rounds), 1.0), confidence)
    assert found is not None
    assert (found.percent, found.percent_low is not None) == (100, known)


@given(st.floats(0, 1e4), st.integers(0, 200))
def test_the_tail_of_a_poisson_distribution(expected: float, above: int) -> None:
    times = math.floor(expected) + above
    assert poisson_tail(times, expected) == pytest.approx(stats.poisson.sf(times - 1, expected), rel=1e-9, abs=1e-280)


GAIN = Estimate(mean=1.5, low=1.25, high=2)
ONE_VALUE = Estimate(mean=1.5, low=None, high=None)


def test_an_estimate_in_other_units() -> None:
    assert GAIN.times(10) == Estimate(mean=15, low=12.5, high=20)
    assert GAIN.change_percent() == Estimate(mean=50, low=25, high=100)
    assert Estimate(mean=0.5, low=0.25, high=0.75).saved_percent() == Estimate(mean=50, low=25, high=75)
    assert ONE_VALUE.times(2) == Estimate(mean=3, low=None, high=None)
    assert ONE_VALUE.change_percent() == Estimate(mean=50, low=None, high=None)
    assert ONE_VALUE.saved_percent() == Estimate(mean=-50, low=None, high=None)
    assert as_columns("gain", GAIN) == {"gain": 1.5, "gain_low": 1.25, "gain_high": 2}
    assert as_columns("gain", None) == {"gain": None, "gain_low": None, "gain_high": None}
    assert (percent(1.035), percent(0.9)) == ("+3.5 %", "-10.0 %")


@pytest.mark.parametrize(
    ("low", "mean", "high", "expected"),
    [
        (1.1, 1.2, 1.3, "faster"),
        (0.7, 0.8, 0.9, "slower"),
        (0.9, 1.2, 1.3, "no difference"),
        (1, 1.2, 1.3, "no difference"),
        (0.7, 0.8, 1, "no difference"),
        (None, 1.2, None, "unknown"),
    ],
)
def test_what_a_ratio_shows(low: float | None, mean: float, high: float | None, expected: str) -> None:
    assert Estimate(mean=mean, low=low, high=high).verdict("faster", "slower") == expected


def test_a_ratio_pairs_the_rounds_that_both_have() -> None:
    assert ratio({1: 6.0, 2: 8.0, 3: 100.0}, {1: 3.0, 2: 4.0, 4: 1.0}) == Estimate(mean=2, low=2, high=2)
    assert ratio({1: 6.0}, {2: 3.0}) is None
    values, base = {1: 2.0, 2: 3.0}, {1: 1.0, 2: 1.0}
    assert ratio(values, base) == estimate([2, 3])
    assert ratio(values, base, 0.5) == estimate([2, 3], 0.5)


def test_a_summary_of_samples() -> None:
    samples = [*map(float, range(100)), 1000.0]
    found = summarise(samples)
    assert (found.mean, found.low, found.high) == student(samples)
    assert (found.min, found.median, found.p99, found.max) == (0, 50, 99, 1000)
    assert found.high is not None
    assert found.half_width_percent == pytest.approx(100 * (found.high - found.mean) / found.mean)
    assert summarise([3.0]).half_width_percent is None
    assert summarise(samples, 0.5).high == student(samples, 0.5)[2]


def test_the_interval_of_an_overhead_widens_with_its_confidence() -> None:
    values, base = {1: 2.0, 2: 3.0, 3: 5.0}, {1: 1.0, 2: 1.0, 3: 1.0}
    wide, narrow = overhead(values, base, 0.74), overhead(values, base, 0.2)
    assert wide is not None
    assert narrow is not None
    assert (narrow.percent_low, narrow.percent_high) == (200, 200)
    assert (wide.percent_low, wide.percent_high) == (100, 400)


def test_equal_values_have_an_interval_without_width() -> None:
    assert welch_ratio([2.0, 2.0], [1.0, 1.0]) == Estimate(mean=2, low=2, high=2)


def test_modified_z_scores_are_standard_deviations_of_normal_values() -> None:
    assert modified_z_scores(np.array([1.0, 2, 3, 4, 100])) == pytest.approx(0.6745 * np.array([-2, -1, 0, 1, 97]))
    # More than half are equal: by the mean absolute deviation, 1 here.
    assert modified_z_scores(np.array([5.0, 5, 5, 9])) == pytest.approx(np.array([0, 0, 0, 4]) / 1.253314)
    assert not modified_z_scores(np.full(4, 7.0)).any()
    assert not len(modified_z_scores(np.zeros(0)))
    draw = np.random.default_rng(2).normal(3, 2, 4000)
    assert modified_z_scores(draw).std() == pytest.approx(1, rel=0.05)
