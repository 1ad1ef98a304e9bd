"""One of two variants takes less time for small messages; reports the size from which the other
does.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hvscale.bench.experiments.averages import change
from hvscale.bench.experiments.series import Bytes, Selector, Series, ValueRange
from hvscale.bench.experiments.statements import (
    Finding,
    Limit,
    Statement,
    groups,
    judge,
    names,
    pairs,
    register,
    widened,
)
from hvscale.bench.experiments.statements.faster import savings
from hvscale.core.units import human_bytes


@register
class FasterWhenSmall(Statement):
    """`of` is faster than `than` at every size up to `up_to` bytes. The reason names the first
    crossover.
    """

    kind: Literal["faster-when-small"]
    of: Annotated[Selector, Field(min_length=1)]
    than: Annotated[Selector, Field(min_length=1)]
    up_to: Bytes
    metric: ClassVar[str] = "saves %"

    @property
    def bounds(self) -> Selector:
        return {**self.where, "bytes": ValueRange(to=self.up_to)}

    def test(self, series: Sequence[Series]) -> Finding:
        found = pairs(series, self.of, self.than, self.where)
        small = pairs(series, self.of, self.than, self.bounds)
        finding = judge(savings(small), Limit(0, above=True))
        if not finding.comparisons:
            return finding
        by_size = groups(found, "bytes")
        sizes = [
            f"{human_bytes(size)} ({name})"
            for name, group in zip(names([group[0] for group in by_size], "bytes"), by_size, strict=True)
            if (size := crossover(group)) is not None
        ]
        more = f"crossover at {'; '.join(sizes)}" if sizes else "no crossover at the sizes measured"
        return finding.model_copy(update={"reason": f"{finding.reason}; {more}"})


def crossover(by_size: Sequence[tuple[Series, ...]]) -> int | None:
    """The first size at which the second variant is faster beyond the interval; None where there is
    none.
    """
    for one, other in by_size:
        found = change(one, other, widened(len(by_size)))
        size = one.where["bytes"]
        if found is not None and found.low is not None and found.low > 0 and isinstance(size, int):
            return size
    return None
