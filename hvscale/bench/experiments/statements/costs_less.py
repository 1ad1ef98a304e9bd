"""One variant costs less than a given percentage more time."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hvscale.bench.experiments.averages import change
from hvscale.bench.experiments.series import Selector, Series
from hvscale.bench.experiments.statements import Compared, Finding, Limit, Statement, judge, names, pairs, register


@register
class CostsLess(Statement):
    """`of` takes less than `percent` more time than `than`, everywhere."""

    kind: Literal["costs-less"]
    of: Annotated[Selector, Field(min_length=1)]
    than: Annotated[Selector, Field(min_length=1)]
    percent: float
    metric: ClassVar[str] = "overhead %"

    def test(self, series: Sequence[Series]) -> Finding:
        found = pairs(series, self.of, self.than, self.where)
        compared = [Compared(name, partial(change, *pair)) for name, pair in zip(names(found), found, strict=True)]
        return judge(compared, Limit(self.percent, above=False))
