"""The difference of repeated times in percent, with a confidence interval, by the average that the
measurement's own tables show.
"""

from collections.abc import Mapping

import numpy as np
from pydantic import BaseModel

from hvscale.bench.experiments.series import Series
from hvscale.core.statistics import Values, overhead, percentile_interval, ratio, resampled_medians, student

Seconds = Mapping[int, float]


class Percent(BaseModel):
    """A difference in percent; `low` and `high` are None where only one round was measured."""

    percent: float
    low: float | None
    high: float | None

    def negated(self) -> "Percent":
        """With the opposite sign."""
        low, high = (None if limit is None else -limit for limit in (self.high, self.low))
        return Percent(percent=-self.percent, low=low, high=high)


def change(of: Series, than: Series, confidence: float) -> Percent | None:
    """(of / than - 1) * 100 over the rounds that have both; None where there are none.

    For medians with a bootstrap interval over whole rounds; otherwise of the geometric mean of the
    rounds' ratios with Student's t interval.
    """
    if of.average == "median":
        found = overhead(of.seconds, than.seconds, confidence)
        return Percent(percent=found.percent, low=found.percent_low, high=found.percent_high) if found else None
    mean = ratio(of.seconds, than.seconds, confidence)
    if mean is None:
        return None
    percent = mean.change_percent()
    return Percent(percent=percent.mean, low=percent.low, high=percent.high)


def growth(last: tuple[Series, Series], first: tuple[Series, Series], confidence: float) -> Percent | None:
    """`change` of the last pair minus `change` of the first pair, in percentage points, over the
    rounds that have all four series.

    For medians with a bootstrap interval over whole rounds; otherwise the mean of the rounds'
    differences with Student's t interval.
    """
    four = [one.seconds for pair in (last, first) for one in pair]
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
        return Percent(percent=float(difference(np.median(values, axis=0))), low=low, high=high)
    percent, low, high = student(difference(values), confidence)
    return Percent(percent=percent, low=low, high=high)
