"""Averages of repeated measurements and their confidence intervals, each with the source of its
formula.

Three intervals, and when each is used:

- Student's t of one group: `student` for a mean, `estimate` and `ratio` for a geometric mean;
- Welch's t of two groups that were not measured in pairs: `welch_ratio`;
- the percentile bootstrap: `overhead` and `medians_interval` for medians of paired rounds,
  `resampled_means` for blocks of steps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

CONFIDENCE = 0.95
CHUNK_VALUES = 1 << 20  # resampled at once: all resamples of thousands of rounds take about a GiB
RESAMPLES = 10_000  # keeps the Monte Carlo error of a 95 % limit below 1 % of the interval's width
WHISKER_REACH = 1.5  # interquartile ranges (Tukey, Exploratory Data Analysis, 1977)
OUTLIER_SCORE = 3.5  # modified z-score (Iglewicz and Hoaglin, 1993)
Values = npt.NDArray[np.float64]


class Estimate(BaseModel):
    """A geometric mean with its confidence interval; the limits are None for a single
    measurement.
    """

    mean: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> "Estimate":
        """The same of every value multiplied by `factor`."""
        low, high = (None if limit is None else limit * factor for limit in (self.low, self.high))
        return Estimate(mean=self.mean * factor, low=low, high=high)

    def change_percent(self) -> "Estimate":
        """How far a ratio is from 1, in percent."""
        low, high = (None if limit is None else 100 * (limit - 1) for limit in (self.low, self.high))
        return Estimate(mean=100 * (self.mean - 1), low=low, high=high)

    def saved_percent(self) -> "Estimate":
        """The saving of a ratio of times: how far it is below 1, in percent."""
        change = self.change_percent()
        low, high = (None if limit is None else -limit for limit in (change.high, change.low))
        return Estimate(mean=-change.mean, low=low, high=high)

    def verdict(self, above: str, below: str) -> str:
        """What a ratio shows: `above` or `below` 1, "no difference" if the interval holds 1,
        "unknown" without one.
        """
        if self.low is None or self.high is None:
            return "unknown"
        return "no difference" if self.low <= 1 <= self.high else above if self.mean > 1 else below


def student(
    values: Sequence[float] | Values, confidence: float = CONFIDENCE
) -> tuple[float, float | None, float | None]:
    """The arithmetic mean of at least one value and its interval by Student's t; limits of None for
    one value.

    Source: Student, The Probable Error of a Mean, Biometrika 6, 1908.
    """
    array = np.asarray(values, np.float64)
    mean = float(array.mean())
    if len(array) < 2:
        return mean, None, None
    reach = t_quantile(len(array) - 1, confidence) * float(array.std(ddof=1)) / len(array) ** 0.5
    return mean, mean - reach, mean + reach


def t_quantile(degrees_of_freedom: float, confidence: float) -> float:
    """Of Student's t, two-sided. By scipy.special, because scipy.stats takes two seconds to
    import.
    """
    from scipy import special  # imported here: commands without intervals start sooner

    return float(special.stdtrit(degrees_of_freedom, (1 + confidence) / 2))


def poisson_tail(times: int, expected: float) -> float:
    """P(X >= times) of a Poisson distribution with a mean of `expected`, below `times`.

    Summed here, because scipy.special takes longer to import than most breakdowns.
    """
    term = math.exp(times * math.log(expected) - expected - math.lgamma(times + 1)) if expected else float(not times)
    total = 0.0
    while term > total * 1e-16:
        total += term
        times += 1
        term *= expected / times
    return total


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The geometric mean of at least one value above zero, with Student's interval of the
    logarithms.

    A geometric mean of ratios does not depend on which is divided by which (Fleming and Wallace,
    CACM 29(3), 1986).
    """
    if len(values) < 2:  # as it is, without the rounding of a logarithm
        return Estimate(mean=float(values[0]), low=None, high=None)
    mean, *limits = student(np.log(values), confidence)
    low, high = (None if limit is None else float(np.exp(limit)) for limit in limits)
    return Estimate(mean=float(np.exp(mean)), low=low, high=high)


def ratio(values: Mapping[int, float], base: Mapping[int, float], confidence: float = CONFIDENCE) -> Estimate | None:
    """The ratio of values to those of the base, by round; None if no round has both.

    Within a round the machine is in the same state, so what slows both cancels out.
    """
    ratios = [value / base[repeat] for repeat, value in values.items() if repeat in base]
    return estimate(ratios, confidence) if ratios else None


def welch_ratio(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The ratio of the geometric means of two groups above zero, with Welch's interval of the
    logarithms.

    The limits are None if a group has one value. Degrees of freedom: Welch, Biometrika 34, 1947.
    """
    logs = np.log(first), np.log(second)
    difference = float(np.mean(logs[0]) - np.mean(logs[1]))
    if min(len(first), len(second)) < 2:
        return Estimate(mean=float(np.exp(difference)), low=None, high=None)
    variances = [float(np.var(group, ddof=1)) / len(group) for group in logs]
    reach = 0.0
    if sum(variances) > 0:
        parts = [part**2 / (len(group) - 1) for part, group in zip(variances, logs, strict=True)]
        reach = t_quantile(sum(variances) ** 2 / sum(parts), confidence) * sum(variances) ** 0.5
    low, mean, high = (float(np.exp(difference + offset)) for offset in (-reach, 0, reach))
    return Estimate(mean=mean, low=low, high=high)


class Summary(BaseModel):
    """Summary statistics of samples. `low` and `high`: the confidence interval of the arithmetic
    mean, None for one sample.
    """

    mean: float
    low: float | None
    high: float | None
    min: float
    median: float
    p99: float
    max: float

    @property
    def half_width_percent(self) -> float | None:
        """Half the width of the interval, in percent of the mean."""
        return None if self.high is None else 100 * (self.high - self.mean) / self.mean


def summarise(samples: Sequence[float], confidence: float = CONFIDENCE) -> Summary:
    """Summarise at least one sample, by the arithmetic mean that nccl-tests and OSU print."""
    values = np.asarray(samples, np.float64)
    mean, low, high = student(values, confidence)
    return Summary(
        mean=mean,
        low=low,
        high=high,
        min=float(values.min()),
        median=float(np.median(values)),
        p99=float(np.percentile(values, 99)),
        max=float(values.max()),
    )


class Overhead(BaseModel):
    """In percent of the base; the limits are None for too few rounds: see `medians_interval`."""

    percent: float
    percent_low: float | None
    percent_high: float | None


def overhead(values: Mapping[int, float], base: Mapping[int, float], confidence: float = CONFIDENCE) -> Overhead | None:
    """(median / median of the base - 1) * 100 with a bootstrap interval, over the rounds that have
    both; None without any.

    Rounds are drawn whole, because within a round the machine is in the same state (Efron and
    Tibshirani, An Introduction to the Bootstrap, 1993: percentile interval of paired data).
    """
    rounds = sorted(set(values) & set(base))
    if not rounds:
        return None
    pairs = np.array([[values[one], base[one]] for one in rounds])

    def percent_over(medians: Values) -> Values:
        return 100 * (medians[..., 0] / medians[..., 1] - 1)

    low, high = medians_interval(pairs, percent_over, confidence)
    return Overhead(percent=float(percent_over(np.median(pairs, axis=0))), percent_low=low, percent_high=high)


def medians_interval(
    rounds: Values, statistic: Callable[[Values], Values], confidence: float = CONFIDENCE
) -> tuple[float | None, float | None]:
    """The bootstrap interval of a statistic of the medians of (rounds, variants); limits of None
    for too few rounds: 95 % needs six.

    No resampled median lies beyond the least and the greatest of n values, which enclose the true
    one with a probability of 1 - 2^(1 - n) (David and Nagaraja, Order Statistics, 2003, chapter 7).
    """
    if 2.0 ** (1 - len(rounds)) > 1 - confidence:
        return None, None
    return percentile_interval(statistic(resampled_medians(rounds)), confidence)


def resampled_medians(rounds: Values) -> Values:
    """The medians of rounds drawn with replacement: (RESAMPLES, variants) from (rounds, variants).

    The seed is fixed here and in `resampled_means`, so that a table does not change when it is made
    again.
    """
    generator = np.random.default_rng(0)
    rows = max(1, CHUNK_VALUES // rounds.size)
    medians = np.empty((RESAMPLES, rounds.shape[1]))
    for start in range(0, RESAMPLES, rows):
        chunk = medians[start : start + rows]
        drawn = generator.integers(len(rounds), size=(len(chunk), len(rounds)))
        chunk[:] = np.median(rounds[drawn], axis=1)
    return medians


def resampled_means(sums: Values, weights: Values, seed: int) -> Values:
    """The weighted means of blocks drawn with replacement, (RESAMPLES,), from each block's sum and
    its weight.

    Blocks of neighbouring steps are drawn whole, because neighbouring steps are alike (Carlstein,
    Annals of Statistics 14(3), 1986). Two independent groups need two seeds.
    """
    times_drawn = _times_drawn(len(sums), seed)
    means: Values = (times_drawn @ sums) / (times_drawn @ weights)
    return means


@lru_cache(maxsize=4)
def _times_drawn(blocks: int, seed: int) -> npt.NDArray[np.float64]:
    """How often each block is drawn: (RESAMPLES, blocks). Kept, because every row of a table needs
    the same draws.
    """
    drawn = np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), RESAMPLES)
    return drawn.astype(np.float64)


def percentile_interval(resampled: Values, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The percentile interval of a resampled statistic (Efron and Tibshirani, 1993, chapter 13)."""
    low, high = np.percentile(resampled, 50 * np.array([1 - confidence, 1 + confidence]))
    return float(low), float(high)


class Box(BaseModel):
    """A box plot. The whiskers end at the last values within 1.5 interquartile ranges of the box;
    `outliers` lie beyond.
    """

    median: float
    quartile_low: float
    quartile_high: float
    whisker_low: float
    whisker_high: float
    outliers: list[float]


def box(values: Sequence[float]) -> Box:
    """The box plot of at least one value; quartiles by linear interpolation, the default of NumPy
    and R.
    """
    low, middle, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
    reach = WHISKER_REACH * (high - low)
    within = [value for value in values if low - reach <= value <= high + reach]
    return Box(
        median=middle,
        quartile_low=low,
        quartile_high=high,
        # Between two values far apart a quartile may lie beyond all values within reach.
        whisker_low=min(low, *within),
        whisker_high=max(high, *within),
        outliers=sorted(value for value in values if not low - reach <= value <= high + reach),
    )


def as_columns(name: str, found: Estimate | None) -> dict[str, Any]:
    """The columns `name`, `name_low` and `name_high` of a table row."""
    mean, low, high = (found.mean, found.low, found.high) if found is not None else (None, None, None)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def percent(ratio: float) -> str:
    """How far a ratio is from 1, for people: +3.5 %."""
    return f"{(ratio - 1) * 100:+.1f} %"


def modified_z_scores(values: Values) -> Values:
    """The robust distance of each value from the median, in units that are standard deviations for
    normally distributed values.

    0.6745 (x - median) / MAD (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993), which
    calls values beyond OUTLIER_SCORE outliers. If more than half of the values are equal, the
    MAD is 0; then (x - median) / (1.253314 mean absolute deviation), as IBM SPSS does. All 0 if all
    values are equal.
    """
    if not len(values):
        return np.zeros(0)
    distances = values - np.median(values)
    scale = float(np.median(np.abs(distances))) / 0.6745
    if not scale:
        scale = 1.253314 * float(np.abs(distances).mean())
    return distances / scale if scale else np.zeros(len(values))
