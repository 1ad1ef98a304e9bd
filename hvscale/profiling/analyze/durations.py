"""The durations of a group of calls, from which its percentiles come.

Groups add up. A small run keeps every duration; a large one counts them in fine classes, because
the durations of half a billion calls take 4 GiB.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hvscale.profiling.read.counters import latency_percentile

EXACT_CALLS = 16 << 20  # of a run: 128 MiB
PERCENTS = (50, 99)
# A class holds the floating-point numbers that agree in their first bits: 2^-10 of the value wide.
CLASS_BITS = 10
SHIFT = np.int64(52 - CLASS_BITS)
FIRST_CLASS = 1023 << CLASS_BITS  # of 1 ns


class Durations(ABC):
    """The durations of some calls, in nanoseconds."""

    @abstractmethod
    def with_(self, other: Self) -> Self:
        """These and the `other` durations."""

    @abstractmethod
    def percentiles(self) -> tuple[float, float]:
        """The median and the 99th percentile, in seconds."""


class ExactDurations(Durations):
    """All durations, in arrays."""

    def __init__(self, pieces: list[NDArray[np.int64]]) -> None:
        self.pieces = pieces

    def with_(self, other: Self) -> Self:
        return type(self)([*self.pieces, *other.pieces])

    def percentiles(self) -> tuple[float, float]:
        p50, p99 = _percentiles(np.concatenate(self.pieces))
        return p50, p99


@dataclass(frozen=True)
class DurationHistogram(Durations):
    """The calls in each class from class `first` on.

    `exact`: the percentiles, if all calls were known when the histogram was made.
    """

    first: int
    counts: NDArray[np.int64]
    exact: tuple[float, float] | None = None

    @classmethod
    def of(cls, durations: NDArray[np.int64]) -> Self:
        classes = durations.astype(np.float64).view(np.int64) >> SHIFT
        np.maximum(classes, FIRST_CLASS - 1, out=classes)  # 0 ns has a class of its own
        first = int(classes.min())
        return cls(first, np.bincount(classes - first), _percentiles(durations))

    def with_(self, other: Self) -> Self:
        first = min(self.first, other.first)
        last = max(self.first + len(self.counts), other.first + len(other.counts))
        counts = np.zeros(last - first, np.int64)
        for one in (self, other):
            counts[one.first - first :][: len(one.counts)] += one.counts
        return type(self)(first, counts)

    def percentiles(self) -> tuple[float, float]:
        """Between the two nearest calls, each in the middle of its class: at most 0.05 % off."""
        if self.exact is not None:
            return self.exact
        ends = np.cumsum(self.counts)
        position = (ends[-1] - 1) * np.array(PERCENTS) / 100
        calls = np.array([np.floor(position), np.ceil(position)])
        below, above = self._middles_ns(np.searchsorted(ends, calls, side="right"))
        p50, p99 = (below + (above - below) * (position % 1)) / 1e9
        return float(p50), float(p99)

    def _middles_ns(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """The middle of the whole nanoseconds in each class; below 2048 ns there is only one."""
        classes = self.first + indices
        low, high = ((edges << SHIFT).view(np.float64) for edges in (classes, classes + 1))
        return np.where(classes < FIRST_CLASS, 0, low + np.maximum(high - low - 1, 0) / 2)


@dataclass(frozen=True)
class CountedDurations(Durations):
    """The latency histogram of counters."""

    latencies: NDArray[np.int64]

    def with_(self, other: Self) -> Self:
        return type(self)(self.latencies + other.latencies)

    def percentiles(self) -> tuple[float, float]:
        return latency_percentile(self.latencies, PERCENTS[0]), latency_percentile(self.latencies, PERCENTS[1])


def _percentiles(durations: NDArray[np.int64]) -> tuple[float, float]:
    p50, p99 = np.percentile(durations, PERCENTS) / 1e9
    return float(p50), float(p99)
