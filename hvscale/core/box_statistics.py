"""What becomes of repeated measurements: medians and quartiles, what a box plot shows of them, and the interval of a ratio of medians."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

CONFIDENCE = 0.95
Values = npt.NDArray[np.float64]
REACH = 1.5  # of a whisker, in interquartile ranges (Tukey, Exploratory Data Analysis, 1977)
RESAMPLES = 10_000


class Box(BaseModel):
    """What a box plot shows. The whiskers end at the last values within 1.5 interquartile ranges of the box; `outliers` lie beyond."""

    median: float
    quartile_low: float
    quartile_high: float
    whisker_low: float
    whisker_high: float
    outliers: list[float]


def box(values: Sequence[float]) -> Box:
    """Of one value at least. Quartiles by linear interpolation, as NumPy and R have them by default."""
    low, middle, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
    reach = REACH * (high - low)
    within = [value for value in values if low - reach <= value <= high + reach]
    return Box(
        median=middle,
        quartile_low=low,
        quartile_high=high,
        # Between two values far apart a quartile may lie beyond all that is within reach.
        whisker_low=min(low, *within),
        whisker_high=max(high, *within),
        outliers=sorted(value for value in values if not low - reach <= value <= high + reach),
    )


class Overhead(BaseModel):
    """In percent of the base; limits are None where one round alone was measured."""

    percent: float
    percent_low: float | None
    percent_high: float | None


def overhead(values: Mapping[int, float], base: Mapping[int, float], confidence: float = CONFIDENCE) -> Overhead | None:
    """(median / median of the base - 1) * 100 with a bootstrap interval, over the rounds that have both; None where there are none.

    Rounds are drawn whole, because in the same round the machine was in the same mood (Efron and Tibshirani, An Introduction to the Bootstrap,
    1993: percentile interval of paired data). The seed is fixed, so that a table comes out the same again.
    """
    rounds = sorted(set(values) & set(base))
    if not rounds:
        return None
    pairs = np.array([[values[one], base[one]] for one in rounds])
    medians = np.median(pairs, axis=0)
    low = high = None
    if len(rounds) > 1:
        of_draws = medians_of_draws(pairs)
        low, high = ends(100 * (of_draws[:, 0] / of_draws[:, 1] - 1), confidence)
    return Overhead(percent=float(100 * (medians[0] / medians[1] - 1)), percent_low=low, percent_high=high)


def medians_of_draws(rounds: Values) -> Values:
    """Of rounds with a column for each variant, drawn whole again and again: a row for each draw."""
    drawn = np.random.default_rng(0).integers(len(rounds), size=(RESAMPLES, len(rounds)))
    return np.asarray(np.median(rounds[drawn], axis=1))


def ends(of_draws: Values, confidence: float) -> tuple[float, float]:
    """Of the percentile interval."""
    low, high = np.percentile(of_draws, 50 * np.array([1 - confidence, 1 + confidence]))
    return float(low), float(high)
