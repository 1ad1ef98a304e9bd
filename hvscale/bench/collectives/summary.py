"""What samples of a time say."""

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel
from scipy import special

CONFIDENCE = 0.95


class Summary(BaseModel):
    """Seconds. `low` and `high`: the 95 % interval of the mean, None with one sample."""

    mean: float
    low: float | None
    high: float | None
    least: float
    median: float
    p99: float
    most: float

    @property
    def width_percent(self) -> float | None:
        """Half the interval, in percent of the mean."""
        return None if self.high is None else 100 * (self.high - self.mean) / self.mean


def summarise(seconds: Sequence[float], confidence: float = CONFIDENCE) -> Summary:
    """Of one sample or more. The arithmetic mean, as nccl-tests and OSU print it, with Student's t interval."""
    values = np.asarray(seconds, np.float64)
    mean = float(values.mean())
    low = high = None
    if len(values) > 1:
        # Student's t by scipy.special, because scipy.stats takes two seconds to import.
        quantile = float(special.stdtrit(len(values) - 1, (1 + confidence) / 2))
        reach = quantile * float(values.std(ddof=1)) / len(values) ** 0.5
        low, high = mean - reach, mean + reach
    return Summary(
        mean=mean,
        low=low,
        high=high,
        least=float(values.min()),
        median=float(np.median(values)),
        p99=float(np.percentile(values, 99)),
        most=float(values.max()),
    )
