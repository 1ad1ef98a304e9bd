"""Series of an experiment: labelled times by round, how to select them, and their differences."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hvscale.bench.collectives.sizes import parse_size
from hvscale.core.errors import RequestError
from hvscale.core.statistics import Values, overhead, percentile_interval, ratio, resampled_medians, student
from hvscale.core.units import human_bytes

Key = Literal[
    "program", "operation", "backend", "collectives", "placement", "flags", "np", "workers", "dtype", "device", "bytes"
]
Value: TypeAlias = int | str
Labels = Mapping[Key, Value]
KEYS: tuple[Key, ...] = Key.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Series:
    """The times of one variant.

    `labels`: what was measured. `seconds`: by round; series of the same round were interleaved.
    `average`: the one in the tables of the measurement.
    """

    labels: Labels
    seconds: Mapping[int, float]
    average: Literal["median", "geometric mean"]


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
    """A difference in percent with its confidence interval; the limits are None for a single
    round.
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
    of the rounds' ratios with Student's t interval.
    """
    if series.average == "median":
        found = overhead(series.seconds, base.seconds, confidence)
        return PercentChange(percent=found.percent, low=found.percent_low, high=found.percent_high) if found else None
    mean = ratio(series.seconds, base.seconds, confidence)
    if mean is None:
        return None
    percent = mean.change_percent()
    return PercentChange(percent=percent.mean, low=percent.low, high=percent.high)


def growth(last: tuple[Series, Series], first: tuple[Series, Series], confidence: float) -> PercentChange | None:
    """`change` of the last pair minus `change` of the first pair, in percentage points, over the
    rounds that have all four series.

    Medians get a bootstrap interval over whole rounds. Otherwise the growth is the mean of the
    rounds' differences with Student's t interval.
    """
    four = [series.seconds for pair in (last, first) for series in pair]
    rounds = sorted(set.intersection(*(set(seconds) for seconds in four)))
    if not rounds:
        return None
    values = np.array([[seconds[one] for seconds in four] for one in rounds])

    def difference(times: Values) -> Values:
        return 100 * (times[..., 0] / times[..., 1] - times[..., 2] / times[..., 3])

    if last[0].average == "median":
        low = high = None
        if len(rounds) > 1:
            low, high = percentile_interval(difference(resampled_medians(values)), confidence)
        return PercentChange(percent=float(difference(np.median(values, axis=0))), low=low, high=high)
    percent, low, high = student(difference(values), confidence)
    return PercentChange(percent=percent, low=low, high=high)
