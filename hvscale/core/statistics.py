"""A mean of few measurements, and how well it is known."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel
from scipy import special

CONFIDENCE = 0.95


class Estimate(BaseModel):
    """A geometric mean with its confidence interval; None for limits that one measurement does not tell."""

    mean: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> "Estimate":
        low, high = (None if limit is None else limit * factor for limit in (self.low, self.high))
        return Estimate(mean=self.mean * factor, low=low, high=high)

    def change_percent(self) -> "Estimate":
        """Of a ratio, how far it is from 1."""
        low, high = (None if limit is None else 100 * (limit - 1) for limit in (self.low, self.high))
        return Estimate(mean=100 * (self.mean - 1), low=low, high=high)


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Of values above zero, at least one: Student's t interval of their logarithms.

    Ratios have a geometric mean that does not depend on which is divided by which (Fleming and Wallace, CACM 29(3), 1986).
    """
    logs = np.log(values)
    if len(logs) < 2:
        return Estimate(mean=float(values[0]), low=None, high=None)
    mean = np.mean(logs)
    # Student's t by scipy.special, because scipy.stats takes two seconds to import.
    quantile = special.stdtrit(len(logs) - 1, (1 + confidence) / 2)
    reach = quantile * np.std(logs, ddof=1) / np.sqrt(len(logs))
    return Estimate(mean=float(np.exp(mean)), low=float(np.exp(mean - reach)), high=float(np.exp(mean + reach)))


def ratio(values: Mapping[int, float], base: Mapping[int, float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Of values to those of the base, by round: in the same round the machine was in the same mood. None where no round has both."""
    ratios = [value / base[repeat] for repeat, value in values.items() if repeat in base]
    return estimate(ratios, confidence) if ratios else None


def as_columns(name: str, found: Estimate | None) -> dict[str, Any]:
    """`name`, `name_low` and `name_high` of a table."""
    mean, low, high = (found.mean, found.low, found.high) if found is not None else (None, None, None)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def percent(ratio: float) -> str:
    """How far a ratio is from 1, for people."""
    return f"{(ratio - 1) * 100:+.1f} %"
