"""One of two variants takes less time."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hvscale.bench.experiments.averages import Percent, change
from hvscale.bench.experiments.series import Selector, Series
from hvscale.bench.experiments.statements import Compared, Finding, Limit, Statement, judge, names, pairs, register


@register
class Faster(Statement):
    """`of` saves more than `by_percent` of the time of `than`: everywhere, or with `somewhere` in
    at least one comparison.
    """

    kind: Literal["faster"]
    of: Annotated[Selector, Field(min_length=1)]
    than: Annotated[Selector, Field(min_length=1)]
    by_percent: float = 0
    somewhere: bool = False
    metric: ClassVar[str] = "saves %"

    @property
    def bounds(self) -> Selector:
        """One comparison suffices for `somewhere`, however far the others were measured."""
        return {} if self.somewhere else self.where

    def test(self, series: Sequence[Series]) -> Finding:
        found = pairs(series, self.of, self.than, self.where)
        limit = Limit(self.by_percent, above=True)
        return judge(savings(found), limit, somewhere=self.somewhere)


def savings(found: Sequence[tuple[Series, Series]]) -> list[Compared]:
    """(1 - of / than) * 100 of each pair."""
    return [Compared(name, partial(saved, pair)) for name, pair in zip(names(found), found, strict=True)]


def saved(pair: tuple[Series, Series], confidence: float) -> Percent | None:
    more = change(*pair, confidence)
    return more.negated() if more is not None else None
