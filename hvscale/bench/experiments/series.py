"""Series of an experiment: labelled times or shares by round, how to select them, and their
differences.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hvscale.bench.collectives.sizes import parse_size
from hvscale.core.errors import RequestError
from hvscale.core.statistics import Values, medians_interval, overhead, ratio, student
from hvscale.core.units import human_bytes

Key = Literal[
    "program",
    "settings",
    "source",
    "operation",
    "backend",
    "collectives",
    "placement",
    "flags",
    "np",
    "workers",
    "dtype",
    "device",
    "bytes",
]
Value: TypeAlias = int | str
Labels = Mapping[Key, Value]
KEYS: tuple[Key, ...] = Key.__args__  # type: ignore[attr-defined]


Unit = Literal["seconds", "share"]
EFFICIENCY, CACHE_HITS = "efficiency", "cache-hits"  # operations whose values are shares


@dataclass(frozen=True)
class PredictedInterval:
    """The interval of a predicted value, which has no rounds."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Series:
    """The times, or the shares of a whole, of one variant.

    `labels`: what was measured. `values`: seconds, or shares from 0 to 1, by round; series of the
    same round were interleaved. `average`: the one in the tables of the measurement. `predicted`:
    the interval of the only value, if it was predicted.
    """

    labels: Labels
    values: Mapping[int, float]
    average: Literal["median", "geometric mean"]
    unit: Unit = "seconds"
    predicted: PredictedInterval | None = None


@dataclass(frozen=True)
class Unavailable:
    """What this machine or this part of the file cannot measure, and why in one line.

    `key`: the one of `labels` that makes it unavailable; claims that do not select it are about
    something else.
    """

    key: Key
    labels: Labels
    reason: str


class ValueRange(BaseModel):
    """A range that includes both ends."""

    model_config = ConfigDict(extra="forbid")

    from_: Annotated[Value | None, Field(alias="from")] = None
    to: Value | None = None


SelectedValues: TypeAlias = Value | list[Value] | ValueRange


def parse_selector(selector: dict[Key, SelectedValues]) -> dict[Key, SelectedValues]:
    """The selector with sizes in bytes. Raises ValueError for an invalid size or range."""
    parsed: dict[Key, SelectedValues] = {}
    for key, values in selector.items():
        if isinstance(values, ValueRange):
            ends = {"from": parse_range_end(key, values.from_), "to": parse_range_end(key, values.to)}
            parsed[key] = ValueRange.model_validate(ends)
        elif isinstance(values, list):
            parsed[key] = [parse_value(key, value) for value in values]
        else:
            parsed[key] = parse_value(key, values)
    return parsed


def parse_range_end(key: Key, value: Value | None) -> int | None:
    if value is None:
        return None
    end = parse_value(key, value)
    if not isinstance(end, int):
        raise ValueError(f"{key} = {value!r} is not a number")
    return end


def parse_value(key: Key, value: Value) -> Value:
    if key != "bytes" or isinstance(value, int):
        return value
    try:
        return parse_size(key, value)
    except RequestError as error:
        raise ValueError(str(error)) from error


Bytes = Annotated[Value, AfterValidator(lambda value: parse_value("bytes", value))]
# A value, a list of alternatives or a range for each key. A key that is left out matches anything.
Selector = Annotated[dict[Key, SelectedValues], AfterValidator(parse_selector)]


def matches(labels: Labels, selector: Selector) -> bool:
    return all(key in labels and value_matches(labels[key], values) for key, values in selector.items())


def value_matches(value: Value, values: SelectedValues) -> bool:
    if isinstance(values, ValueRange):
        low, high = (end if isinstance(end, int) else None for end in (values.from_, values.to))
        return isinstance(value, int) and (low is None or low <= value) and (high is None or value <= high)
    return value in values if isinstance(values, list) else value == values


def select(series: Iterable[Series], *selectors: Selector) -> list[Series]:
    """The series that match all selectors."""
    return [one for one in series if all(matches(one.labels, selector) for selector in selectors)]


def describe(labels: Labels, keys: Iterable[Key]) -> str:
    """The values of some keys in words."""
    return ", ".join(describe_value(key, labels[key]) for key in KEYS if key in keys and key in labels)


def describe_value(key: Key, value: Value) -> str:
    if key == "bytes" and isinstance(value, int):
        return human_bytes(value)
    return f"{key} {value}" if key in ("np", "workers") else str(value) or f"no {key}"


class PercentChange(BaseModel):
    """A difference in percent with its confidence interval; the limits are None for too few
    rounds.
    """

    percent: float
    low: float | None
    high: float | None

    def negated(self) -> "PercentChange":
        """The change with the opposite sign."""
        low, high = (None if limit is None else -limit for limit in (self.high, self.low))
        return PercentChange(percent=-self.percent, low=low, high=high)


def change(series: Series, base: Series, confidence: float) -> PercentChange | None:
    """(series / base - 1) * 100 over the rounds that have both; None if no round has both.

    Medians get a bootstrap interval over whole rounds. Otherwise the change is the geometric mean
    of the rounds' ratios with Student's t interval. Two predictions get the interval of
    `predicted_difference`, of their logarithms; a prediction is not compared with a measurement.
    """
    if series.predicted is not None and base.predicted is not None:
        mean, low, high = predicted_difference(series, base, confidence, math.log)
        return PercentChange(percent=100 * math.expm1(mean), low=100 * math.expm1(low), high=100 * math.expm1(high))
    if series.predicted is not None or base.predicted is not None:
        return None
    if series.average == "median":
        found = overhead(series.values, base.values, confidence)
        return PercentChange(percent=found.percent, low=found.percent_low, high=found.percent_high) if found else None
    found_ratio = ratio(series.values, base.values, confidence)
    if found_ratio is None:
        return None
    percent = found_ratio.change_percent()
    return PercentChange(percent=percent.mean, low=percent.low, high=percent.high)


def points(series: Series, base: Series, confidence: float) -> PercentChange | None:
    """(series - base) * 100, of shares, in percentage points; None if no round has both.

    The mean of the rounds' differences with Student's t interval, or of two predictions with that
    of `predicted_difference`.
    """
    if series.predicted is not None and base.predicted is not None:
        mean, low, high = (100 * one for one in predicted_difference(series, base, confidence, float))
        return PercentChange(percent=mean, low=low, high=high)
    rounds = sorted(set(series.values) & set(base.values))
    if not rounds or series.predicted is not None or base.predicted is not None:
        return None
    found, lowest, highest = student([100 * (series.values[one] - base.values[one]) for one in rounds], confidence)
    return PercentChange(percent=found, low=lowest, high=highest)


def predicted_difference(
    series: Series, base: Series, confidence: float, scale: Callable[[float], float]
) -> tuple[float, float, float]:
    """The difference of two predictions on a scale, and its interval.

    Each limit is as far from the difference as the root of the sum of the squared distances of both
    predictions' limits (Zou and Donner, Statistics in Medicine 27, 2008). Predictions of one job
    share errors, which makes the interval wider than necessary.
    """
    value, low, high = map(scale, predicted_interval(series, confidence))
    base_value, base_low, base_high = map(scale, predicted_interval(base, confidence))
    difference = value - base_value
    return (
        difference,
        difference - math.hypot(value - low, base_high - base_value),
        difference + math.hypot(high - value, base_value - base_low),
    )


def predicted_interval(series: Series, confidence: float) -> tuple[float, float, float]:
    """A prediction and its limits, at another confidence as if its logarithm were normal.

    Raises ValueError if the series is no prediction.
    """
    if series.predicted is None:
        raise ValueError("the series is not a prediction")
    [value] = series.values.values()
    wider = normal_quantile(confidence) / normal_quantile(series.predicted.confidence)
    low, high = (value * (limit / value) ** wider for limit in (series.predicted.low, series.predicted.high))
    return value, low, high


def normal_quantile(confidence: float) -> float:
    """Of the standard normal distribution, two-sided."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def growth(last: tuple[Series, Series], first: tuple[Series, Series], confidence: float) -> PercentChange | None:
    """`change` of the last pair minus `change` of the first pair, in percentage points, over the
    rounds that have all four series.

    Medians get a bootstrap interval over whole rounds. Otherwise the growth is the mean of the
    rounds' differences with Student's t interval.
    """
    four = [series.values for pair in (last, first) for series in pair]
    rounds = sorted(set.intersection(*(set(values) for values in four)))
    if not rounds:
        return None
    table = np.array([[values[one] for values in four] for one in rounds])

    def difference(times: Values) -> Values:
        return 100 * (times[..., 0] / times[..., 1] - times[..., 2] / times[..., 3])

    if last[0].average == "median":
        low, high = medians_interval(table, difference, confidence)
        return PercentChange(percent=float(difference(np.median(table, axis=0))), low=low, high=high)
    percent, low, high = student(difference(table), confidence)
    return PercentChange(percent=percent, low=low, high=high)
