"""The kinds of claims that studies make about times, each tested on confidence intervals. Each file
of this folder registers one kind.

Where all comparisons must agree, each is judged by its own 95 % interval: the chance that all of
them mislead is no larger than the chance that one does (Berger, Technometrics 24(4), 1982). Where
one of them suffices, it is judged by an interval of 1 - 0.05 / (number of comparisons), because one
of many may deviate by chance (Bonferroni).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from hvscale.bench.experiments.averages import Percent
from hvscale.bench.experiments.series import Key, Selector, Series, ValueRange, describe, selected, word
from hvscale.core.registry import Registry
from hvscale.core.statistics import CONFIDENCE

Verdict = Literal["holds", "does not hold", "inconclusive"]
NOTHING = "nothing it is about was measured"


class StatementComparison(BaseModel):
    """One figure behind a finding, with its 95 % interval.

    `agrees`: whether the interval lies on the claim's side of the limit; None where it contains the
    limit.
    """

    what: str
    percent: float
    percent_low: float | None
    percent_high: float | None
    agrees: bool | None


class Finding(BaseModel):
    """The result of testing a claim. `limit_percent`: what the comparisons are compared with; the
    decisive ones come first.
    """

    verdict: Verdict
    reason: str
    limit_percent: float | None = None
    comparisons: list[StatementComparison] = []


@dataclass(frozen=True)
class Compared:
    """`percent(confidence)`: a figure with its interval; None where no round has all the series it
    needs.
    """

    what: str
    percent: Callable[[float], Percent | None]


@dataclass(frozen=True)
class Limit:
    """The limit that an interval must lie above, or below."""

    percent: float
    above: bool

    def agrees(self, found: Percent) -> bool | None:
        if found.low is None or found.high is None:
            return None
        if self.above:
            return True if found.low > self.percent else False if found.high < self.percent else None
        return True if found.high < self.percent else False if found.low > self.percent else None

    def distance(self, comparison: StatementComparison) -> float:
        """How far the interval lies beyond the limit on the claim's side; the least value speaks
        most against the claim.
        """
        low, high = comparison.percent_low, comparison.percent_high
        if low is None or high is None:
            return comparison.percent if self.above else -comparison.percent
        return low - self.percent if self.above else self.percent - high

    def __str__(self) -> str:
        return f"{'above' if self.above else 'below'} {self.percent:g}"


class Statement(BaseModel, ABC):
    """A claim of the TOML file. `claim`: in the study's words. `kind`: how it is tested. `where`:
    what it is about; empty for all.
    """

    model_config = ConfigDict(extra="forbid")

    kind: str
    claim: Annotated[str, Field(min_length=1)]
    where: Selector = {}
    metric: ClassVar[str]

    @property
    def bounds(self) -> Selector:
        """The range the claim is about. It cannot hold if less than this range was measured."""
        return self.where

    def find(self, series: Sequence[Series]) -> Finding:
        finding = self.test(series)
        short = beyond_reach(series, self.bounds)
        if finding.verdict != "holds" or not short:
            return finding
        return finding.model_copy(update={"verdict": "inconclusive", "reason": f"{short}; {finding.reason}"})

    @abstractmethod
    def test(self, series: Sequence[Series]) -> Finding:
        """Test the claim on the measured series."""


Kind = TypeVar("Kind", bound=type[Statement])
STATEMENTS: Registry[type[Statement]] = Registry("kind of statement", __name__)


def register(kind: Kind) -> Kind:
    """Decorator for the model of a kind, whose field `kind` holds its name."""
    [name] = get_args(kind.__annotations__["kind"])
    STATEMENTS.register(name, kind)
    return kind


def judge(compared: Sequence[Compared], limit: Limit, *, somewhere: bool = False) -> Finding:
    """The finding whether all figures lie beyond the limit; with `somewhere`, whether at least one
    does.
    """
    measured = [(one, found) for one in compared if (found := one.percent(CONFIDENCE)) is not None]
    if not measured:
        return Finding(verdict="inconclusive", reason=NOTHING)
    comparisons = [compare(one.what, found, limit) for one, found in measured]
    one_of_them = widened(len(measured))
    sides = [limit.agrees(found) for one, _ in measured if (found := one.percent(one_of_them)) is not None]
    all_sides = [comparison.agrees for comparison in comparisons]
    comparisons.sort(key=limit.distance, reverse=somewhere)
    verdict, why = verdict_of(all_sides, sides, somewhere)
    if all(comparison.percent_low is None for comparison in comparisons):
        why = "a single round gives no confidence interval"
    return Finding(verdict=verdict, reason=f"{limit} %: {why}", limit_percent=limit.percent, comparisons=comparisons)


def beyond_reach(series: Sequence[Series], bounds: Selector) -> str:
    """Which range was not measured to its end, in words; empty where all were."""
    for key, asked in bounds.items():
        if isinstance(asked, ValueRange) and isinstance(asked.to, int):
            rest = {other: value for other, value in bounds.items() if other != key}
            reached = [one.where[key] for one in selected(series, rest) if key in one.where]
            numbers = [value for value in reached if isinstance(value, int)]
            if numbers and max(numbers) < asked.to:
                return f"measured up to {word(key, max(numbers))}, not {word(key, asked.to)}"
    return ""


def widened(number: int) -> float:
    """The confidence level of intervals of which any one suffices."""
    return 1 - (1 - CONFIDENCE) / number


def compare(what: str, found: Percent, limit: Limit) -> StatementComparison:
    return StatementComparison(
        what=what,
        percent=found.percent,
        percent_low=found.low,
        percent_high=found.high,
        agrees=limit.agrees(found),
    )


def verdict_of(each: Sequence[bool | None], sure: Sequence[bool | None], somewhere: bool) -> tuple[Verdict, str]:
    """`each`: the sides of the limit by 95 % intervals; `sure`: by intervals widened for their
    number.
    """
    number = len(each)
    beyond, short = each.count(True), each.count(False)
    if somewhere and True in sure:
        return "holds", f"{sure.count(True)} of {intervals(number)}, widened for their number"
    if somewhere and short == number:
        return "does not hold", f"none of {intervals(number)}; all lie on the other side"
    if not somewhere and beyond == number:
        return "holds", f"{number} of {intervals(number)}"
    if not somewhere and False in sure:
        return (
            "does not hold",
            f"{sure.count(False)} of {intervals(number)} on the other side, widened for their number",
        )
    return "inconclusive", f"{beyond} of {intervals(number)}, {short} on the other side"


def intervals(number: int) -> str:
    return f"{number} interval{'' if number == 1 else 's'}"


def pairs(series: Sequence[Series], of: Selector, than: Selector, where: Selector) -> list[tuple[Series, Series]]:
    """Pairs of a series of `of` and one of `than` that differ in nothing but the keys that either
    selector names.
    """
    free = {*of, *than}
    others = selected(series, than, where)
    return [
        (one, other)
        for one in selected(series, of, where)
        for other in others
        if other.where != one.where and fixed(one, free) == fixed(other, free)
    ]


def fixed(series: Series, free: set[Key]) -> dict[Key, Any]:
    return {key: value for key, value in series.where.items() if key not in free}


def groups(found: Sequence[tuple[Series, ...]], along: Key) -> list[list[tuple[Series, ...]]]:
    """Groups of at least two that differ in nothing but the key `along`, in its order."""
    by_rest: dict[Any, list[tuple[Series, ...]]] = {}
    for each in found:
        if all(along in one.where for one in each):
            rest = tuple(frozenset(fixed(one, {along}).items()) for one in each)
            by_rest.setdefault(rest, []).append(each)
    ordered = [sorted(each, key=lambda one: one[0].where[along]) for each in by_rest.values()]
    return [each for each in ordered if len(each) > 1]


def names(found: Sequence[tuple[Series, ...]], without: Key | None = None) -> list[str]:
    """A name for each: the differences within it, then the keys in which it differs from the
    others.
    """
    every = [one.where for each in found for one in each]
    varying = {key for where in every for key in where if len({str(each.get(key)) for each in every}) > 1}
    result = []
    for each in found:
        own = {
            key for one in each for key in one.where if any(other.where.get(key) != one.where[key] for other in each)
        }
        different = " against ".join(describe(one.where, own) for one in each) if own else ""
        shared = describe(each[0].where, varying - own - {without})
        result.append(", ".join(text for text in (different, shared) if text))
    return result
