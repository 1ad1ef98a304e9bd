"""Shares of a whole, such as scaling efficiency and a cache's hit rate."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

from hvscale.bench.experiments.series import PercentChange, Selector, Series, Unit, points, predicted_interval, select
from hvscale.bench.experiments.statements import (
    Finding,
    Limit,
    PairStatement,
    Quantity,
    SomewhereStatement,
    Statement,
    judge,
    names,
    register,
)
from hvscale.core.statistics import student


@register
class HigherShare(PairStatement, SomewhereStatement):
    """The share of `of` is more than `by_points` percentage points above that of `than`:
    everywhere, or with `somewhere` in at least one comparison.
    """

    kind: Literal["higher-share"]
    by_points: float = 0
    metric: ClassVar[str] = "points"
    unit: ClassVar[Unit] = "share"

    def test_measured(self, series: Sequence[Series]) -> Finding:
        pairs = self.pairs(series)
        quantities = [Quantity(name, partial(points, *pair)) for name, pair in zip(names(pairs), pairs, strict=True)]
        return judge(quantities, Limit(self.by_points, above=True), somewhere=self.somewhere)


@register
class ShareAbove(SomewhereStatement):
    """A share is above `percent`: everywhere, or with `somewhere` in at least one place."""

    kind: Literal["share-above"]
    percent: float
    metric: ClassVar[str] = "%"
    unit: ClassVar[Unit] = "share"

    def test_measured(self, series: Sequence[Series]) -> Finding:
        return judge(shares(self.where, series), Limit(self.percent, above=True), somewhere=self.somewhere)


@register
class ShareBelow(Statement):
    """A share is below `percent`, everywhere."""

    kind: Literal["share-below"]
    percent: float
    metric: ClassVar[str] = "%"
    unit: ClassVar[Unit] = "share"

    def test_measured(self, series: Sequence[Series]) -> Finding:
        return judge(shares(self.where, series), Limit(self.percent, above=False))


def shares(where: Selector, series: Sequence[Series]) -> list[Quantity]:
    """Each selected share in percent."""
    found = select(series, where)
    named = names([(one,) for one in found])
    return [
        Quantity(name or str(one.labels.get("operation", "share")), partial(share, one))
        for name, one in zip(named, found, strict=True)
    ]


def share(series: Series, confidence: float) -> PercentChange:
    """The arithmetic mean over the rounds with Student's t interval, or a prediction with its own
    interval, in percent.
    """
    if series.predicted is not None:
        value, least, most = (100 * one for one in predicted_interval(series, confidence))
        return PercentChange(percent=value, low=least, high=most)
    mean, low, high = student([100 * value for value in series.values.values()], confidence)
    return PercentChange(percent=mean, low=low, high=high)
