"""Summary statistics of the samples of a time."""

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel

from hvscale.core.statistics import CONFIDENCE, student


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
    """The summary of at least one sample. The arithmetic mean, as nccl-tests and OSU print it, with
    Student's t interval.
    """
    values = np.asarray(seconds, np.float64)
    mean, low, high = student(values, confidence)
    return Summary(
        mean=mean,
        low=low,
        high=high,
        least=float(values.min()),
        median=float(np.median(values)),
        p99=float(np.percentile(values, 99)),
        most=float(values.max()),
    )
