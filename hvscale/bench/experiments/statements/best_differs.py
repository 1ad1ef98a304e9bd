"""The best choice for one is not the best for another."""

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
    """No single value of `of` has the least time for every value of `between`. Times are summed
    over the other keys.

    It holds when two values of `between` have different best choices, each faster than the other
    beyond the intervals. It does not hold when one choice is faster than all others everywhere
    beyond the intervals.
    """

    kind: Literal["best-differs"]
    of: Key
    between: Key
    metric: ClassVar[str] = "saves %"

    def test(self, series: Sequence[Series]) -> Finding:
        tables = self.tables(selected(series, self.where))
        choices = {choice for table in tables.values() for choice in table}
        if len(tables) < 2 or len(choices) < 2:
            return Finding(verdict="inconclusive", reason=NOTHING)
        best = {place: min(table, key=lambda choice: mean(table[choice])) for place, table in tables.items()}
        best_names = ", ".join(f"{word(self.of, choice)} for {place}" for place, choice in best.items())
        # The best of each against the best of the others, or against all where the same one is best
        # everywhere.
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
            limit_percent=limit.percent, comparisons=comparisons, **verdict(set(best.values()), every, sure, best_names)
        )

    def tables(self, series: Sequence[Series]) -> dict[Any, dict[Any, Series]]:
        """For each value of `between`, each value of `of` with its summed times."""
        parts: dict[Any, dict[Any, list[Series]]] = {}
        for one in series:
            if self.of in one.where and self.between in one.where:
                parts.setdefault(one.where[self.between], {}).setdefault(one.where[self.of], []).append(one)
        tables = {place: whole(table, self.of) for place, table in parts.items()}
        return {place: table for place, table in tables.items() if table}


def whole(parts: dict[Any, list[Series]], of: Key) -> dict[Any, Series]:
    """The sum for each choice that has all the parts of the others."""
    held = {choice: {frozenset(fixed(part, {of}).items()) for part in found} for choice, found in parts.items()}
    every = set().union(*held.values())
    return {choice: added(found) for choice, found in parts.items() if held[choice] == every}


def verdict(best: set[Any], every: bool, sure: set[tuple[Any, Any]], best_names: str) -> dict[str, Any]:
    """`every`: whether all comparisons of a best choice with a rival agree; `sure`: those that
    agree by widened intervals.
    """
    if len(best) == 1 and every:
        return {"verdict": "does not hold", "reason": f"the same choice is best beyond all intervals: {best_names}"}
    if any((one, other) in sure and (other, one) in sure for one, other in itertools.combinations(best, 2)):
        return {"verdict": "holds", "reason": f"each is faster beyond intervals widened for their number: {best_names}"}
    return {"verdict": "inconclusive", "reason": f"the intervals of the best choices overlap: {best_names}"}


def added(parts: Sequence[Series]) -> Series:
    """The sum of series over the rounds that all of them have."""
    rounds = set.intersection(*(set(part.seconds) for part in parts))
    where: Where = parts[0].where
    return Series(where, {one: sum(part.seconds[one] for part in parts) for one in sorted(rounds)}, parts[0].average)


def mean(series: Series) -> float:
    return sum(series.seconds.values()) / len(series.seconds) if series.seconds else float("inf")
