"""A time, or an overhead, grows with a number such as np."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

from hvscale.bench.experiments.series import Key, PercentChange, Series, change, describe_value, growth, select
from hvscale.bench.experiments.statements import (
    Finding,
    Limit,
    PairStatement,
    Quantity,
    Statement,
    groups,
    judge,
    names,
    register,
)

Ends = list[tuple[str, tuple[Series, ...], tuple[Series, ...]]]


@register
class OverheadGrows(PairStatement):
    """The overhead of `of` over `than` is larger at the largest `along` than at the smallest,
    everywhere.
    """

    kind: Literal["overhead-grows"]
    along: Key
    metric: ClassVar[str] = "grows by points"

    def test_measured(self, series: Sequence[Series]) -> Finding:
        ends = ends_along(self.pairs(series), self.along)
        return judge(
            [Quantity(name, partial(overhead_growth, last, first)) for name, last, first in ends], Limit(0, above=True)
        )


@register
class TimeGrows(Statement):
    """The time at the largest `along` is more than at the smallest, everywhere."""

    kind: Literal["time-grows"]
    along: Key
    metric: ClassVar[str] = "more time %"

    def test_measured(self, series: Sequence[Series]) -> Finding:
        ends = ends_along([(one,) for one in select(series, self.where)], self.along)
        return judge(
            [Quantity(name, partial(change, last[0], first[0])) for name, last, first in ends], Limit(0, above=True)
        )


def ends_along(found: Sequence[tuple[Series, ...]], along: Key) -> Ends:
    """For each group along `along`: its name with the range, its last and its first item."""
    ends = [(group[-1], group[0]) for group in groups(found, along)]
    result = []
    for name, (last, first) in zip(names([last for last, _ in ends], along), ends, strict=True):
        span = " to ".join(describe_value(along, each[0].labels[along]) for each in (first, last))
        result.append((", ".join(text for text in (name, span) if text), last, first))
    return result


def overhead_growth(last: tuple[Series, ...], first: tuple[Series, ...], confidence: float) -> PercentChange | None:
    return growth((last[0], last[1]), (first[0], first[1]), confidence)
