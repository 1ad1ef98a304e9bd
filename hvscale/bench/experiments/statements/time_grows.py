"""The time grows with a number, such as np."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

from hvscale.bench.experiments.averages import change
from hvscale.bench.experiments.series import Key, Series, selected
from hvscale.bench.experiments.statements import Compared, Finding, Limit, Statement, groups, judge, names, register
from hvscale.bench.experiments.statements.overhead_grows import span


@register
class TimeGrows(Statement):
    """The time at the largest `along` is more than at the smallest, everywhere."""

    kind: Literal["time-grows"]
    along: Key
    metric: ClassVar[str] = "more time %"

    def test(self, series: Sequence[Series]) -> Finding:
        ends = [(group[-1], group[0]) for group in groups([(one,) for one in selected(series, self.where)], self.along)]
        compared = [
            Compared(span(name, self.along, last, first), partial(change, last[0], first[0]))
            for name, (last, first) in zip(names([last for last, _ in ends], self.along), ends, strict=True)
        ]
        return judge(compared, Limit(0, above=True))
