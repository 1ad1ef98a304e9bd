"""What is best for one is not best for another."""

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from hvscale.bench.experiments.series import Key, Series, Where, selected, word
from hvscale.bench.experiments.statements import (
    NOTHING,
    Finding,
    Limit,
    Statement,
    compare,
    fixed,
    register,
    widened,
)
from hvscale.bench.experiments.statements.faster import saved
from hvscale.core.statistics import CONFIDENCE


@register
class BestDiffers(Statement):
    """Not one `of` has the least time in every `between`; the times of all that `where` leaves are added for it.

    It holds when two of `between` have different ones that are faster there for sure; it does not when one is faster than all others in every
    `between` for sure.
    """

    kind: Literal["best-differs"]
    of: Key
    between: Key
    figure: ClassVar[str] = "saves %"

    def test(self, series: Sequence[Series]) -> Finding:
        tables = self.tables(selected(series, self.where))
        choices = {choice for table in tables.values() for choice in table}
        if len(tables) < 2 or len(choices) < 2:
            return Finding(verdict="cannot be said here", why=NOTHING)
        best = {place: min(table, key=lambda choice: mean(table[choice])) for place, table in tables.items()}
        told = ", ".join(f"{word(self.of, choice)} for {place}" for place, choice in best.items())
        # The best of each against its rivals: the best of the others, or where that is the same one everybody.
        rivals = set(best.values()) if len(set(best.values())) > 1 else choices
        compared = [
            (place, best[place], rival, (table[best[place]], table[rival]))
            for place, table in tables.items()
            for rival in sorted(rivals - {best[place]}, key=str)
            if rival in table
        ]
        limit = Limit(0, above=True)
        comparisons = [
            compare(f"{place}: {word(self.of, own)} against {word(self.of, rival)}", found, limit)
            for place, own, rival, pair in compared
            if (found := saved(pair, CONFIDENCE)) is not None
        ]
        sure = {
            (own, rival)
            for _, own, rival, pair in compared
            if (found := saved(pair, widened(len(compared)))) is not None and limit.agrees(found)
        }
        every = len(comparisons) == len(compared) and all(one.agrees for one in comparisons)
        return Finding(
            limit_percent=limit.percent, comparisons=comparisons, **verdict(set(best.values()), every, sure, told)
        )

    def tables(self, series: Sequence[Series]) -> dict[Any, dict[Any, Series]]:
        """For each `between`, each `of` with its times added."""
        parts: dict[Any, dict[Any, list[Series]]] = {}
        for one in series:
            if self.of in one.where and self.between in one.where:
                parts.setdefault(one.where[self.between], {}).setdefault(one.where[self.of], []).append(one)
        tables = {place: whole(table, self.of) for place, table in parts.items()}
        return {place: table for place, table in tables.items() if table}


def whole(parts: dict[Any, list[Series]], of: Key) -> dict[Any, Series]:
    """The sum of each that has all the parts of the others."""
    held = {choice: {frozenset(fixed(part, {of}).items()) for part in found} for choice, found in parts.items()}
    every = set().union(*held.values())
    return {choice: added(found) for choice, found in parts.items() if held[choice] == every}


def verdict(best: set[Any], every: bool, sure: set[tuple[Any, Any]], told: str) -> dict[str, Any]:
    """`every`: whether all comparisons of a best one with a rival agree; `sure`: those that do by intervals widened for their number."""
    if len(best) == 1 and every:
        return {"verdict": "does not hold", "why": f"the same one is beyond all intervals: {told}"}
    if any((one, other) in sure and (other, one) in sure for one, other in itertools.combinations(best, 2)):
        return {"verdict": "holds", "why": f"each beyond the other's interval, widened for their number: {told}"}
    return {"verdict": "cannot be said here", "why": f"the intervals do not tell the best ones apart: {told}"}


def added(parts: Sequence[Series]) -> Series:
    """Over the rounds that have all parts."""
    rounds = set.intersection(*(set(part.seconds) for part in parts))
    where: Where = parts[0].where
    return Series(where, {one: sum(part.seconds[one] for part in parts) for one in sorted(rounds)}, parts[0].average)


def mean(series: Series) -> float:
    return sum(series.seconds.values()) / len(series.seconds) if series.seconds else float("inf")
