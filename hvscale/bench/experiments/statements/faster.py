"""One variant takes less time than another, or hardly more."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import ClassVar, Literal

from hvscale.bench.experiments.series import (
    Bytes,
    PercentChange,
    Selector,
    Series,
    ValueRange,
    change,
    describe_value,
    select,
)
from hvscale.bench.experiments.statements import (
    NOT_MEASURED,
    Finding,
    Limit,
    PairStatement,
    Quantity,
    SomewhereStatement,
    change_quantities,
    corrected_confidence,
    groups,
    judge,
    names,
    register,
)
from hvscale.core.units import human_bytes


@register
class Faster(PairStatement, SomewhereStatement):
    """`of` saves more than `by_percent` of the time of `than`: everywhere, or with `somewhere` in
    at least one comparison.
    """

    kind: Literal["faster"]
    by_percent: float = 0
    metric: ClassVar[str] = "saves %"

    def test_measured(self, series: Sequence[Series]) -> Finding:
        limit = Limit(self.by_percent, above=True)
        return judge(savings(self.pairs(series)), limit, somewhere=self.somewhere)


@register
class FasterOnAverage(PairStatement):
    """`of` saves more than `by_percent` of the time of `than` in the geometric mean over all
    comparisons, over the rounds that all of them have.
    """

    kind: Literal["faster-on-average"]
    by_percent: float = 0
    metric: ClassVar[str] = "saves %"

    def test_measured(self, series: Sequence[Series]) -> Finding:
        pairs = [pair for pair in self.pairs(series) if all(one.predicted is None for one in pair)]
        rounds = [set(one.values) for pair in pairs for one in pair]
        if not rounds or not set.intersection(*rounds):
            return Finding(verdict="inconclusive", reason=NOT_MEASURED)
        of, than = (mean_of([pair[place] for pair in pairs], set.intersection(*rounds)) for place in range(2))
        name = f"mean of {len(pairs)} comparisons: {names(pairs)[0]} ..." if len(pairs) > 1 else names(pairs)[0]
        return judge([Quantity(name, partial(saved, (of, than)))], Limit(self.by_percent, above=True))


@register
class CostsLess(PairStatement):
    """`of` takes less than `percent` more time than `than`, everywhere."""

    kind: Literal["costs-less"]
    percent: float
    metric: ClassVar[str] = "overhead %"

    def test_measured(self, series: Sequence[Series]) -> Finding:
        return judge(change_quantities(self.pairs(series)), Limit(self.percent, above=False))


@register
class FasterWhenSmall(PairStatement):
    """`of` is faster than `than` at every size up to `up_to` bytes, of which at least two must be
    measured. The reason names the first crossover.
    """

    kind: Literal["faster-when-small"]
    up_to: Bytes
    metric: ClassVar[str] = "saves %"

    @property
    def claimed_range(self) -> Selector:
        sizes = self.where.get("bytes")
        smallest = sizes.from_ if isinstance(sizes, ValueRange) else None
        return {**self.where, "bytes": ValueRange.model_validate({"from": smallest, "to": self.up_to})}

    def missing_range(self, series: Sequence[Series]) -> str:
        if missing := super().missing_range(series):
            return missing
        small = self.small_pairs(series)
        is_alone = sum(map(len, groups(small, "bytes"))) < len(small)
        return f"measured only one size up to {describe_value('bytes', self.up_to)}" if is_alone else ""

    def small_pairs(self, series: Sequence[Series]) -> list[tuple[Series, Series]]:
        """The pairs of the claimed sizes."""
        return self.pairs(select(series, {"bytes": ValueRange(to=self.up_to)}))

    def test_measured(self, series: Sequence[Series]) -> Finding:
        finding = judge(savings(self.small_pairs(series)), Limit(0, above=True))
        if not finding.comparisons:
            return finding
        by_size = groups(self.pairs(series), "bytes")
        sizes = [
            f"{human_bytes(size)} ({name})"
            for name, group in zip(names([group[0] for group in by_size], "bytes"), by_size, strict=True)
            if (size := crossover(group)) is not None
        ]
        text = f"crossover at {'; '.join(sizes)}" if sizes else "no crossover at the measured sizes"
        return finding.model_copy(update={"reason": f"{finding.reason}; {text}"})


def savings(pairs: Sequence[tuple[Series, Series]]) -> list[Quantity]:
    """(1 - of / than) * 100 of each pair."""
    return [Quantity(name, partial(saved, pair)) for name, pair in zip(names(pairs), pairs, strict=True)]


def mean_of(series: Sequence[Series], rounds: Iterable[int]) -> Series:
    """The geometric mean of all series in each of the rounds."""
    values = {one: fmean(math.log(each.values[one]) for each in series) for one in sorted(rounds)}
    return Series({}, {one: math.exp(value) for one, value in values.items()}, "geometric mean")


def saved(pair: tuple[Series, Series], confidence: float) -> PercentChange | None:
    found = change(*pair, confidence)
    return found.negated() if found is not None else None


def crossover(by_size: Sequence[tuple[Series, ...]]) -> int | None:
    """The first size at which the second variant is faster beyond the interval; None if there is
    none.
    """
    for one, other in by_size:
        found = change(one, other, corrected_confidence(len(by_size)))
        size = one.labels["bytes"]
        if found is not None and found.low is not None and found.low > 0 and isinstance(size, int):
            return size
    return None
