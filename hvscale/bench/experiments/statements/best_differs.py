"""The best choice for one is not the best for another."""

import itertools
from collections.abc import Sequence
from statistics import geometric_mean, median
from typing import Any, ClassVar, Literal

from hvscale.bench.experiments.series import Key, Labels, Series, describe_value, select
from hvscale.bench.experiments.statements import (
    NOT_MEASURED,
    Finding,
    Limit,
    Statement,
    compare,
    corrected_confidence,
    labels_without,
    register,
)
from hvscale.bench.experiments.statements.faster import saved
from hvscale.core.statistics import CONFIDENCE


@register
class BestDiffers(Statement):
    """No single value of `of` has the least time for every value of `between`. Times are summed
    over the other keys.

    It holds if two values of `between` have different best choices, each faster than the other
    beyond the intervals. It does not hold if one choice is faster than all others everywhere beyond
    the intervals, and the times of every choice are complete.
    """

    kind: Literal["best-differs"]
    of: Key
    between: Key
    metric: ClassVar[str] = "saves %"

    def test_measured(self, series: Sequence[Series]) -> Finding:
        parts = self.parts(select(series, self.where))
        tables = {value: table for value, found in parts.items() if (table := complete_sums(found, self.of))}
        choices = {choice for table in tables.values() for choice in table}
        if len(tables) < 2 or len(choices) < 2:
            return Finding(verdict="inconclusive", reason=NOT_MEASURED)
        best = {value: min(table, key=lambda choice: average(table[choice])) for value, table in tables.items()}
        best_names = ", ".join(f"{describe_value(self.of, choice)} for {value}" for value, choice in best.items())
        # The best of each against the best of the others, or against all if the same one is best
        # everywhere.
        rivals = set(best.values()) if len(set(best.values())) > 1 else choices
        compared = [
            (value, best[value], rival, (table[best[value]], table[rival]))
            for value, table in tables.items()
            for rival in sorted(rivals - {best[value]}, key=str)
            if rival in table
        ]
        limit = Limit(0, above=True)
        comparisons = [
            compare(f"{value}: {describe_value(self.of, own)} against {describe_value(self.of, rival)}", found, limit)
            for value, own, rival, pair in compared
            if (found := saved(pair, CONFIDENCE)) is not None
        ]
        confidence = corrected_confidence(max(1, len(compared)))
        proven = {
            (own, rival)
            for _, own, rival, pair in compared
            if (found := saved(pair, confidence)) is not None and limit.agrees(found)
        }
        all_agree = len(comparisons) == len(compared) and all(one.agrees for one in comparisons)
        return Finding(
            limit_percent=limit.percent,
            comparisons=comparisons,
            **verdict(set(best.values()), all_agree, proven, best_names, self.incomplete(parts, tables)),
        )

    def parts(self, series: Sequence[Series]) -> dict[Any, dict[Any, list[Series]]]:
        """The series of each value of `of`, by the values of `between`."""
        parts: dict[Any, dict[Any, list[Series]]] = {}
        for one in series:
            if self.of in one.labels and self.between in one.labels:
                parts.setdefault(one.labels[self.between], {}).setdefault(one.labels[self.of], []).append(one)
        return parts

    def incomplete(self, parts: dict[Any, dict[Any, list[Series]]], tables: dict[Any, dict[Any, Series]]) -> list[str]:
        """The choices that lack times for a value of `between`, in words."""
        named = dict.fromkeys(choice for found in parts.values() for choice in found)
        return [
            f"{describe_value(self.of, choice)} for {value}"
            for value in parts
            for choice in named
            if choice not in tables.get(value, {})
        ]


def complete_sums(parts: dict[Any, list[Series]], of: Key) -> dict[Any, Series]:
    """The sum for each choice that was measured with all label combinations of the others."""
    measured = {
        choice: {frozenset(labels_without(part, {of}).items()) for part in found} for choice, found in parts.items()
    }
    every = set().union(*measured.values())
    return {choice: sum_series(found) for choice, found in parts.items() if measured[choice] == every}


def verdict(
    best: set[Any], all_agree: bool, proven: set[tuple[Any, Any]], best_names: str, incomplete: list[str]
) -> dict[str, Any]:
    """`all_agree`: whether each best choice is faster than its rivals by 95 % intervals; `proven`:
    the (best, rival) pairs that agree by widened intervals. `incomplete`: the choices that were not
    compared everywhere.
    """
    if len(best) == 1 and all_agree and not incomplete:
        return {"verdict": "does not hold", "reason": f"the same choice is best beyond all intervals: {best_names}"}
    if any((one, other) in proven and (other, one) in proven for one, other in itertools.combinations(best, 2)):
        return {"verdict": "holds", "reason": f"each is faster beyond intervals widened for their number: {best_names}"}
    why = "the intervals of the best choices overlap"
    if incomplete:
        why = f"the times of {', '.join(incomplete)} are incomplete"
    return {"verdict": "inconclusive", "reason": f"{why}: {best_names}"}


def sum_series(parts: Sequence[Series]) -> Series:
    """The sum of series over the rounds that all of them have."""
    rounds = set.intersection(*(set(part.values) for part in parts))
    labels: Labels = parts[0].labels
    return Series(labels, {one: sum(part.values[one] for part in parts) for one in sorted(rounds)}, parts[0].average)


def average(series: Series) -> float:
    """Its average over the rounds, which `saved` compares; infinite without any."""
    values = list(series.values.values())
    if not values:
        return float("inf")
    return median(values) if series.average == "median" else geometric_mean(values)
