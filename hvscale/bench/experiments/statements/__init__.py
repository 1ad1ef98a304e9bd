"""The kinds of statements that studies make. Each is a file of this folder and registers itself; what it says of times is tested on intervals.

Two errors are guarded against alike. Where all of several comparisons must agree, each is judged by its own 95 % interval: that all of them
mislead is no likelier than that one does (Berger, Technometrics 24(4), 1982). Where one of them decides, it is judged by an interval of
1 - 0.05 / (number of comparisons), since among many one strays by chance (Bonferroni).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from hvscale.bench.experiments.averages import Percent
from hvscale.bench.experiments.series import Key, Range, Selector, Series, describe, selected, word
from hvscale.core.registry import Registry
from hvscale.core.statistics import CONFIDENCE

Verdict = Literal["holds", "does not hold", "cannot be said here"]
NOTHING = "nothing that it speaks of was measured"


class Comparison(BaseModel):
    """One figure that a statement rests on, with its 95 % interval. `agrees`: which side of the limit the interval lies on, None: on both."""

    what: str
    percent: float
    percent_low: float | None
    percent_high: float | None
    agrees: bool | None


class Finding(BaseModel):
    """What came of a statement. `why`: in words; `limit_percent`: what the `comparisons` are held against; those that decide come first."""

    verdict: Verdict
    why: str
    limit_percent: float | None = None
    comparisons: list[Comparison] = []


@dataclass(frozen=True)
class Compared:
    """`percent(confidence)`: a figure with its interval, None where no round has all of it."""

    what: str
    percent: Callable[[float], Percent | None]


@dataclass(frozen=True)
class Limit:
    """What an interval must lie above, or below."""

    percent: float
    above: bool

    def agrees(self, found: Percent) -> bool | None:
        if found.low is None or found.high is None:
            return None
        if self.above:
            return True if found.low > self.percent else False if found.high < self.percent else None
        return True if found.high < self.percent else False if found.low > self.percent else None

    def distance(self, comparison: Comparison) -> float:
        """How far the interval reaches beyond the limit, on the side of the statement: the least speaks most against it."""
        low, high = comparison.percent_low, comparison.percent_high
        if low is None or high is None:
            return comparison.percent if self.above else -comparison.percent
        return low - self.percent if self.above else self.percent - high

    def __str__(self) -> str:
        return f"{'above' if self.above else 'below'} {self.percent:g}"


class Statement(BaseModel, ABC):
    """What stands in the file. `says`: in the study's words; `kind`: how it is tested; `where`: what it speaks of, all where it is left out."""

    model_config = ConfigDict(extra="forbid")

    kind: str
    says: Annotated[str, Field(min_length=1)]
    where: Selector = {}
    figure: ClassVar[str]

    @property
    def bounds(self) -> Selector:
        """How far it claims to hold: what has not been measured so far, it has not been tested on."""
        return self.where

    def find(self, series: Sequence[Series]) -> Finding:
        finding = self.test(series)
        short = beyond_reach(series, self.bounds)
        if finding.verdict != "holds" or not short:
            return finding
        return finding.model_copy(update={"verdict": "cannot be said here", "why": f"{short}; {finding.why}"})

    @abstractmethod
    def test(self, series: Sequence[Series]) -> Finding:
        """On what was measured. `figure` is what its percents are."""


Kind = TypeVar("Kind", bound=type[Statement])
STATEMENTS: Registry[type[Statement]] = Registry("kind of statement", __name__)


def register(kind: Kind) -> Kind:
    """Decorator for the model of a kind, whose field `kind` holds its name."""
    [name] = get_args(kind.__annotations__["kind"])
    STATEMENTS.register(name, kind)
    return kind


def judge(compared: Sequence[Compared], limit: Limit, *, somewhere: bool = False) -> Finding:
    """Whether all of the figures lie beyond the limit; `somewhere`: whether one of them does."""
    measured = [(one, found) for one in compared if (found := one.percent(CONFIDENCE)) is not None]
    if not measured:
        return Finding(verdict="cannot be said here", why=NOTHING)
    comparisons = [compare(one.what, found, limit) for one, found in measured]
    one_of_them = widened(len(measured))
    sides = [limit.agrees(found) for one, _ in measured if (found := one.percent(one_of_them)) is not None]
    all_sides = [comparison.agrees for comparison in comparisons]
    comparisons.sort(key=limit.distance, reverse=somewhere)
    verdict, why = verdict_of(all_sides, sides, somewhere)
    if all(comparison.percent_low is None for comparison in comparisons):
        why = "one round tells no interval"
    return Finding(verdict=verdict, why=f"{limit} %: {why}", limit_percent=limit.percent, comparisons=comparisons)


def beyond_reach(series: Sequence[Series], bounds: Selector) -> str:
    """What was measured less far than to the end of a range; empty where all was."""
    for key, asked in bounds.items():
        if isinstance(asked, Range) and isinstance(asked.to, int):
            rest = {other: value for other, value in bounds.items() if other != key}
            reached = [one.where[key] for one in selected(series, rest) if key in one.where]
            numbers = [value for value in reached if isinstance(value, int)]
            if numbers and max(numbers) < asked.to:
                return f"measured up to {word(key, max(numbers))}, not {word(key, asked.to)}"
    return ""


def widened(number: int) -> float:
    """The confidence of intervals any of which may decide."""
    return 1 - (1 - CONFIDENCE) / number


def compare(what: str, found: Percent, limit: Limit) -> Comparison:
    return Comparison(
        what=what,
        percent=found.percent,
        percent_low=found.low,
        percent_high=found.high,
        agrees=limit.agrees(found),
    )


def verdict_of(each: Sequence[bool | None], sure: Sequence[bool | None], somewhere: bool) -> tuple[Verdict, str]:
    """`each`: the sides of the limit by 95 % intervals, `sure`: by those widened for their number."""
    number = len(each)
    beyond, short = each.count(True), each.count(False)
    if somewhere and True in sure:
        return "holds", f"{sure.count(True)} of {intervals(number)}, widened for their number"
    if somewhere and short == number:
        return "does not hold", f"none of {intervals(number)}, all lie on the other side"
    if not somewhere and beyond == number:
        return "holds", f"{number} of {intervals(number)}"
    if not somewhere and False in sure:
        return (
            "does not hold",
            f"{sure.count(False)} of {intervals(number)} on the other side, widened for their number",
        )
    return "cannot be said here", f"{beyond} of {intervals(number)}, {short} on the other side"


def intervals(number: int) -> str:
    return f"{number} interval{'' if number == 1 else 's'}"


def pairs(series: Sequence[Series], of: Selector, than: Selector, where: Selector) -> list[tuple[Series, Series]]:
    """Each series of the one with each of the other that differs from it in nothing but what either selector names."""
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
    """Those that differ in nothing but `along`, in its order; only where there are two at least."""
    by_rest: dict[Any, list[tuple[Series, ...]]] = {}
    for each in found:
        if all(along in one.where for one in each):
            rest = tuple(frozenset(fixed(one, {along}).items()) for one in each)
            by_rest.setdefault(rest, []).append(each)
    ordered = [sorted(each, key=lambda one: one[0].where[along]) for each in by_rest.values()]
    return [each for each in ordered if len(each) > 1]


def names(found: Sequence[tuple[Series, ...]], without: Key | None = None) -> list[str]:
    """What tells each apart from the others: the series' own differences, then what is not the same in all."""
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
