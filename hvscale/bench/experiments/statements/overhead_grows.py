"""The overhead of one variant over another grows with a number, such as np."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hvscale.bench.experiments.averages import Percent, growth
from hvscale.bench.experiments.series import Key, Selector, Series, word
from hvscale.bench.experiments.statements import (
    Compared,
    Finding,
    Limit,
    Statement,
    groups,
    judge,
    names,
    pairs,
    register,
)


@register
class OverheadGrows(Statement):
    """The overhead of `of` over `than` is larger at the largest `along` than at the smallest,
    everywhere.
    """

    kind: Literal["overhead-grows"]
    of: Annotated[Selector, Field(min_length=1)]
    than: Annotated[Selector, Field(min_length=1)]
    along: Key
    metric: ClassVar[str] = "grows by points"

    def test(self, series: Sequence[Series]) -> Finding:
        found = groups(pairs(series, self.of, self.than, self.where), self.along)
        ends = [(group[-1], group[0]) for group in found]
        compared = [
            Compared(span(name, self.along, last, first), partial(grown, last, first))
            for name, (last, first) in zip(names([last for last, _ in ends], self.along), ends, strict=True)
        ]
        return judge(compared, Limit(0, above=True))


def span(name: str, along: Key, last: tuple[Series, ...], first: tuple[Series, ...]) -> str:
    """The name with the range of `along`."""
    ends = (word(along, each[0].where[along]) for each in (first, last))
    return ", ".join(text for text in (name, " to ".join(ends)) if text)


def grown(last: tuple[Series, ...], first: tuple[Series, ...], confidence: float) -> Percent | None:
    return growth((last[0], last[1]), (first[0], first[1]), confidence)
