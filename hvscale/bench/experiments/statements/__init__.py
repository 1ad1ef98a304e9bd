"""The kinds of claims that studies make about times, each tested on confidence intervals. Each file
of this folder registers one or more kinds.

If all comparisons must agree, each is judged by its own 95 % interval: the chance that all of them
mislead is no larger than the chance that one does (Berger, Technometrics 24(4), 1982). If one
comparison is enough, it is judged by an interval of 1 - 0.05 / (number of comparisons), because one
of many may deviate by chance (Bonferroni).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from hvscale.bench.experiments.series import (
    Key,
    Labels,
    PercentChange,
    Selector,
    Series,
    Unavailable,
    Unit,
    ValueRange,
    change,
    describe,
    describe_value,
    select,
    value_matches,
)
from hvscale.core.registry import Registry
from hvscale.core.statistics import CONFIDENCE

StatementVerdict = Literal["holds", "does not hold", "inconclusive", "cannot be tested here"]
NOT_MEASURED = "no measurement matches this statement"


class StatementComparison(BaseModel):
    """One percentage behind a finding, with its 95 % interval.

    `agrees`: whether the interval lies on the claim's side of the limit; None if it contains the
    limit.
    """

    what: str
    percent: float
    percent_low: float | None
    percent_high: float | None
    agrees: bool | None


class Finding(BaseModel):
    """The result of testing a claim. `limit_percent`: the limit for the comparisons, of which the
    decisive ones come first.
    """

    verdict: StatementVerdict
    reason: str
    limit_percent: float | None = None
    comparisons: list[StatementComparison] = []


@dataclass(frozen=True)
class Quantity:
    """A percentage to judge. `percent(confidence)`: its value with the interval; None if no round
    has all the series it needs.
    """

    name: str
    percent: Callable[[float], PercentChange | None]


@dataclass(frozen=True)
class Limit:
    """The limit that an interval must be above or below."""

    percent: float
    above: bool

    def agrees(self, found: PercentChange) -> bool | None:
        if found.low is None or found.high is None:
            return None
        if self.above:
            return True if found.low > self.percent else False if found.high < self.percent else None
        return True if found.high < self.percent else False if found.low > self.percent else None

    def distance(self, comparison: StatementComparison) -> float:
        """How far the interval lies beyond the limit on the claim's side, in percent. The smallest
        value is the strongest evidence against the claim.
        """
        low, high = comparison.percent_low, comparison.percent_high
        if low is None or high is None:
            return comparison.percent if self.above else -comparison.percent
        return low - self.percent if self.above else self.percent - high

    def __str__(self) -> str:
        return f"{'above' if self.above else 'below'} {self.percent:g}"


class Statement(BaseModel, ABC):
    """A claim in the TOML file.

    `claim`: in the study's words. `kind`: how it is tested. `where`: the series it is about; empty
    for all. `unit`: of those series.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: str
    claim: Annotated[str, Field(min_length=1)]
    where: Selector = {}
    metric: ClassVar[str]
    unit: ClassVar[Unit] = "seconds"

    @property
    def selectors(self) -> list[Selector]:
        """What must be measured to test the claim: each selector must match a series."""
        return [self.where]

    @property
    def claimed_range(self) -> Selector:
        """The range of the claim. If an end was not measured, `needs_range` is not proven."""
        return self.where

    @property
    def needs_range(self) -> StatementVerdict:
        """The verdict that only measurements of the whole range prove."""
        return "holds"

    def test(self, series: Sequence[Series], unavailable: Sequence[Unavailable] = ()) -> Finding:
        """Test the claim on the measured series.

        `unavailable`: what could not be measured. If the claim needs it, it cannot be tested.
        """
        series = [one for one in series if one.unit == self.unit]
        finding = self.test_measured(series)
        lacking = reasons(self.selectors, series, unavailable)
        if not finding.comparisons and lacking:
            return Finding(verdict="cannot be tested here", reason="; ".join(lacking))
        missing = self.missing_range(series)
        if finding.verdict != self.needs_range or not missing:
            return finding
        return finding.model_copy(update={"verdict": "inconclusive", "reason": f"{missing}; {finding.reason}"})

    def missing_range(self, series: Sequence[Series]) -> str:
        """Which end of a range some of the compared series do not reach, in words; "" if none."""
        for key, values in self.claimed_range.items():
            if not isinstance(values, ValueRange):
                continue
            measured: dict[frozenset[Any], list[int]] = {}
            for one in self.compared(
                series, {other: value for other, value in self.claimed_range.items() if other != key}
            ):
                if isinstance(number := one.labels.get(key), int):
                    measured.setdefault(frozenset(labels_without(one, {key}).items()), []).append(number)
            largest = min(map(max, measured.values()), default=None)
            if largest is not None and isinstance(values.to, int) and largest < values.to:
                return f"measured up to {describe_value(key, largest)}, not {describe_value(key, values.to)}"
            smallest = max(map(min, measured.values()), default=None)
            if smallest is not None and isinstance(values.from_, int) and smallest > values.from_:
                return f"measured from {describe_value(key, smallest)} on, not from {describe_value(key, values.from_)}"
        return ""

    def compared(self, series: Sequence[Series], where: Selector) -> list[Series]:
        """The series that the claim is about. `where`: instead of the claim's."""
        return select(series, where)

    @abstractmethod
    def test_measured(self, series: Sequence[Series]) -> Finding:
        """Test the claim, whether or not its whole range was measured."""


class SomewhereStatement(Statement):
    """A claim about all comparisons, or with `somewhere` about at least one.

    One comparison proves what holds somewhere, whatever range was measured.
    """

    somewhere: bool = False

    @property
    def needs_range(self) -> StatementVerdict:
        return "does not hold" if self.somewhere else "holds"


class PairStatement(Statement):
    """A claim about the time of `of` relative to the time of `than`."""

    of: Annotated[Selector, Field(min_length=1)]
    than: Annotated[Selector, Field(min_length=1)]

    @property
    def selectors(self) -> list[Selector]:
        return [{**self.where, **self.of}, {**self.where, **self.than}]

    def compared(self, series: Sequence[Series], where: Selector) -> list[Series]:
        """Those of `of` that have a series of `than` to compare with."""
        return [one for one, _ in self.pairs(series, where)]

    def pairs(self, series: Sequence[Series], where: Selector | None = None) -> list[tuple[Series, Series]]:
        """Pairs of a series of `of` and one of `than` whose other labels are the same.

        `where`: instead of the claim's.
        """
        where = self.where if where is None else where
        named = {*self.of, *self.than}
        bases = select(series, self.than, where)
        return [
            (one, base)
            for one in select(series, self.of, where)
            for base in bases
            if base.labels != one.labels and labels_without(one, named) == labels_without(base, named)
        ]


Kind = TypeVar("Kind", bound=type[Statement])
STATEMENTS: Registry[type[Statement]] = Registry("kind of statement", __name__)


def register(kind: Kind) -> Kind:
    """Decorator for the model of a kind; the type of its field `kind` gives the name."""
    [name] = get_args(kind.__annotations__["kind"])
    STATEMENTS.register(name, kind)
    return kind


def judge(quantities: Sequence[Quantity], limit: Limit, *, somewhere: bool = False) -> Finding:
    """Whether all quantities are beyond the limit; with `somewhere`, whether at least one is."""
    measured = [(one.name, one, found) for one in quantities if (found := one.percent(CONFIDENCE)) is not None]
    if not measured:
        return Finding(verdict="inconclusive", reason=NOT_MEASURED)
    comparisons = [compare(name, found, limit) for name, _, found in measured]
    confidence = corrected_confidence(len(measured))
    corrected = [limit.agrees(found) for _, one, _ in measured if (found := one.percent(confidence)) is not None]
    agreements = [comparison.agrees for comparison in comparisons]
    comparisons.sort(key=limit.distance, reverse=somewhere)
    verdict, why = decide(agreements, corrected, somewhere)
    if all(comparison.percent_low is None for comparison in comparisons):
        why = "too few rounds for confidence intervals"
    return Finding(verdict=verdict, reason=f"{limit} %: {why}", limit_percent=limit.percent, comparisons=comparisons)


def change_quantities(pairs: Sequence[tuple[Series, Series]]) -> list[Quantity]:
    """(of / than - 1) * 100 of each pair."""
    return [Quantity(name, partial(change, *pair)) for name, pair in zip(names(pairs), pairs, strict=True)]


def reasons(selectors: Sequence[Selector], series: Sequence[Series], unavailable: Sequence[Unavailable]) -> list[str]:
    """Why selectors that match no series cannot match one: what they select is unavailable."""
    return list(
        dict.fromkeys(
            one.reason
            for selector in selectors
            if not select(series, selector)
            for one in unavailable
            if one.key in selector and could_match(one.labels, selector)
        )
    )


def could_match(labels: Labels, selector: Selector) -> bool:
    """Whether the labels that both have do not contradict the selector."""
    return all(value_matches(labels[key], values) for key, values in selector.items() if key in labels)


def corrected_confidence(comparisons: int) -> float:
    """The confidence of each interval if any one of the comparisons is enough (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / comparisons


def compare(what: str, found: PercentChange, limit: Limit) -> StatementComparison:
    return StatementComparison(
        what=what,
        percent=found.percent,
        percent_low=found.low,
        percent_high=found.high,
        agrees=limit.agrees(found),
    )


def decide(
    agreements: Sequence[bool | None], corrected: Sequence[bool | None], somewhere: bool
) -> tuple[StatementVerdict, str]:
    """The verdict and its reason. `agreements`: by 95 % intervals; `corrected`: by intervals
    widened for their number.
    """
    number = len(agreements)
    agreeing, opposite = agreements.count(True), agreements.count(False)
    if somewhere and True in corrected:
        return "holds", f"{corrected.count(True)} of {intervals(number)}, widened for their number"
    if somewhere and opposite == number:
        return "does not hold", f"none of {intervals(number)}; all lie on the other side"
    if not somewhere and agreeing == number:
        return "holds", f"{number} of {intervals(number)}"
    if not somewhere and False in corrected:
        return (
            "does not hold",
            f"{corrected.count(False)} of {intervals(number)} on the other side, widened for their number",
        )
    return "inconclusive", f"{agreeing} of {intervals(number)}, {opposite} on the other side"


def intervals(number: int) -> str:
    return f"{number} interval{'' if number == 1 else 's'}"


def labels_without(series: Series, keys: set[Key]) -> dict[Key, Any]:
    return {key: value for key, value in series.labels.items() if key not in keys}


def groups(found: Sequence[tuple[Series, ...]], along: Key) -> list[list[tuple[Series, ...]]]:
    """Groups of at least two whose labels differ only in `along`, in its order."""
    by_labels: dict[Any, list[tuple[Series, ...]]] = {}
    for each in found:
        if all(along in one.labels for one in each):
            rest = tuple(frozenset(labels_without(one, {along}).items()) for one in each)
            by_labels.setdefault(rest, []).append(each)
    ordered = [sorted(each, key=lambda one: one[0].labels[along]) for each in by_labels.values()]
    return [each for each in ordered if len(each) > 1]


def names(found: Sequence[tuple[Series, ...]], without: Key | None = None) -> list[str]:
    """A name for each: the labels that differ within it, then those that differ from the others."""
    every = [one.labels for each in found for one in each]
    varying = {key for labels in every for key in labels if len({str(each.get(key)) for each in every}) > 1}
    result = []
    for each in found:
        own = {
            key for one in each for key in one.labels if any(other.labels.get(key) != one.labels[key] for other in each)
        }
        different = " against ".join(describe(one.labels, own) for one in each) if own else ""
        shared = describe(each[0].labels, varying - own - {without})
        result.append(", ".join(text for text in (different, shared) if text))
    return result
