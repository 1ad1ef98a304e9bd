"""Derives the decision table from measurements: few rules, none of them based on noise.

A choice is proven at a size if it is the library's own, or if it is faster than that and their
intervals do not overlap. The best choice is the proven one with the lowest median. A choice is good
enough at a size if its median is within 3 % of the best, or within 5 % with overlapping intervals:
such a difference is noise. A table is valid if its choices are good enough at all sizes and each
rule is proven at some size in its range. Dynamic programming over the sizes finds a valid table
with the fewest rules.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, isqrt, log, sqrt
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel

from hvscale.comm_tuning.collectives.decide.measurements import (
    LIBRARY,
    AlgorithmChoice,
    CollectiveCase,
    Measurements,
    Point,
    Time,
)
from hvscale.comm_tuning.collectives.tables.table import CollectivesTable, Operation, Rule
from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError

MAX_LOSS_RATIO = 1.03  # to the best time at a size: the most that a rule may lose
NOISE_RATIO = 1.05  # the same if the intervals overlap; a larger ratio always counts as a difference
# To the library with nothing set: an eager limit with a slower size is rejected.
MAX_SLOWDOWN_RATIO = 1.05

AtSize = Mapping[AlgorithmChoice, Time]
TimesBySize = Mapping[int, AtSize]  # by message size in bytes


class SizeRow(BaseModel):
    """One size of one case. Seconds are medians.

    `library_seconds`: of the library with nothing set. `gain`: library_seconds / table_seconds.
    `significant`: the intervals of these two do not overlap. `undecided`: the best choice is more
    than 3 % faster than the table's, but within the noise; more samples are needed.
    """

    operation: Operation
    np: int
    ranks_per_node: int
    bytes: int
    choice: AlgorithmChoice
    library_seconds: float
    table_seconds: float
    best_seconds: float
    gain: float
    significant: bool
    undecided: bool


class EagerLimitRow(BaseModel):
    """One eager limit. `gain`: the geometric mean over all sizes. `min_gain`: of the worst size.

    Both are None if the limit was not measured for every case.
    """

    eager_limit_bytes: int | None
    gain: float | None
    min_gain: float | None
    chosen: bool


class Decision(VersionedDocument):
    """The decision table and the figures behind it."""

    schema_: Literal["hvscale/collective-decision/2"] = "hvscale/collective-decision/2"
    table: CollectivesTable
    gain: float
    eager_limits: list[EagerLimitRow]
    rows: list[SizeRow]


def decide(measurements: Measurements) -> Decision:
    """The decision for these measurements.

    Raises RequestError without measurements of the library with nothing set, the baseline.
    """
    points = trusted(measurements.points)
    base = {case: at_sizes(series, LIBRARY) for case, series in by_case(points, None).items()}
    base = {case: sizes for case, sizes in base.items() if sizes}
    if not base:
        raise RequestError("no measurement of the baseline, the library with nothing set: measure that first")
    limits = eager_limits(points)
    found = {}
    for limit in limits:
        series = by_case(points, limit)
        chosen = {case: decide_sizes(decidable(series.get(case, {}))) for case in base}
        if all(any(size in base[case] for size in sizes) for case, sizes in chosen.items()):
            found[limit] = EagerLimitOutcome.of(base, series, chosen)
    best = best_limit(found)
    outcome = found[best]
    rules = [rule for case in sorted(base) for rule in rules_of(case, outcome.chosen[case])]
    table = CollectivesTable(mpi=measurements.mpi, eager_limit_bytes=best, rule=rules)
    rows = [row for case in sorted(base) for row in rows_of(case, base[case], outcome)]
    return Decision(
        table=table,
        gain=outcome.gain,
        eager_limits=[
            EagerLimitRow(
                eager_limit_bytes=limit,
                gain=found[limit].gain if limit in found else None,
                min_gain=found[limit].min_gain if limit in found else None,
                chosen=limit == best,
            )
            for limit in limits
        ],
        rows=rows,
    )


def trusted(points: Iterable[Point]) -> list[Point]:
    """The points without wrong results, and without choices that had any for the same operation.

    The library's own choice is left out only where it was wrong: there is no other to fall back on.
    """
    points = list(points)
    wrong = {(point.operation, point.choice) for point in points if point.wrong}
    return [
        point
        for point in points
        if not point.wrong and (point.choice == LIBRARY or (point.operation, point.choice) not in wrong)
    ]


def eager_limits(points: Iterable[Point]) -> list[int | None]:
    """The eager limits that were measured, the library's own (None) first."""
    return sorted({point.eager_limit_bytes for point in points}, key=lambda limit: limit or 0)


def by_case(points: Iterable[Point], limit: int | None) -> dict[CollectiveCase, dict[int, dict[AlgorithmChoice, Time]]]:
    """The times under one eager limit, by case, size and choice.

    Samples of the same choice and size are pooled.
    """
    samples: dict[CollectiveCase, dict[int, dict[AlgorithmChoice, list[float]]]] = {}
    for point in points:
        if point.eager_limit_bytes == limit:
            sizes = samples.setdefault(point.case, {}).setdefault(point.bytes, {})
            sizes.setdefault(point.choice, []).extend(point.seconds)
    return {
        case: {
            size: {choice: Time.of(sizes[size][choice]) for choice in sorted(sizes[size], key=lambda one: one.order)}
            for size in sorted(sizes)
        }
        for case, sizes in samples.items()
    }


def decidable(series: TimesBySize) -> TimesBySize:
    """The sizes at which the library's own choice was measured."""
    return {size: times for size, times in series.items() if LIBRARY in times}


def at_sizes(series: TimesBySize, choice: AlgorithmChoice) -> dict[int, Time]:
    return {size: times[choice] for size, times in series.items() if choice in times}


def proven(times: AtSize) -> list[AlgorithmChoice]:
    """The library's own choice, and the choices that are faster beyond both intervals."""
    base = times[LIBRARY]
    return [
        choice
        for choice, time in times.items()
        if choice == LIBRARY or (time.high < base.low and time.median < base.median)
    ]


def best_of(times: AtSize) -> AlgorithmChoice:
    return min(proven(times), key=lambda choice: (times[choice].median, choice.order))


def good_enough(times: AtSize) -> list[AlgorithmChoice]:
    """The choices whose loss against the best is within the limits."""
    best = times[best_of(times)]
    return [
        choice
        for choice, time in times.items()
        if time.median <= MAX_LOSS_RATIO * best.median
        or (time.median <= NOISE_RATIO * best.median and time.overlaps(best))
    ]


class TableCost(NamedTuple):
    """The cost of a table, compared in this order.

    `unproven`: sizes whose choice is not proven. `loss`: the sum of the losses' logarithms.
    """

    rules: int = 0
    unproven: int = 0
    loss: float = 0.0


class PartialTable(NamedTuple):
    """The cheapest table up to a size that ends with a certain choice.

    `choices`: by number; of tables with equal costs, the first in order.
    """

    cost: TableCost
    choices: tuple[int, ...]

    def then(self, choice: int, loss: float, rules: int, proven: bool) -> "PartialTable":
        before = self.cost
        # Rounded, so that the order of the sum does not matter.
        cost = TableCost(before.rules + rules, before.unproven + (not proven), round(before.loss + loss, 9))
        return PartialTable(cost, (*self.choices, choice))


def decide_sizes(series: TimesBySize) -> dict[int, AlgorithmChoice]:
    """The choice at each size, with the fewest rules.

    A solution always exists, because each size's best choice is proven.
    """
    known = sorted({choice for times in series.values() for choice in times}, key=lambda choice: choice.order)
    # By the last choice and whether its rule is proven yet: only then may another rule follow.
    partials: dict[tuple[int, bool], PartialTable] = {}
    shortest = PartialTable(TableCost(), ())
    for times in series.values():
        best, proven_here = times[best_of(times)].median, proven(times)
        extended: dict[tuple[int, bool], PartialTable] = {}
        for choice in good_enough(times):
            number, is_proven, loss = known.index(choice), choice in proven_here, log(times[choice].median / best)
            options = [(is_proven, shortest.then(number, loss, 1, is_proven))]
            options += [
                (was_proven or is_proven, partial.then(number, loss, 0, is_proven))
                for (last, was_proven), partial in partials.items()
                if last == number
            ]
            for rule_proven, partial in options:
                extended[number, rule_proven] = min(partial, extended.get((number, rule_proven), partial))
        partials = extended
        shortest = min(partial for (_, rule_proven), partial in partials.items() if rule_proven)
    return {size: known[number] for size, number in zip(series, shortest.choices, strict=True)}


@dataclass(frozen=True)
class EagerLimitOutcome:
    """The choices under one eager limit, and their gains over the library with nothing set.

    `log_gains`: the gains' logarithms at all sizes of the baseline. `half_widths`: half widths of
    their intervals, without the noise of the baseline.
    """

    series: Mapping[CollectiveCase, TimesBySize]
    chosen: Mapping[CollectiveCase, Mapping[int, AlgorithmChoice]]
    log_gains: tuple[float, ...]
    half_widths: tuple[float, ...]

    @classmethod
    def of(
        cls,
        base: Mapping[CollectiveCase, Mapping[int, Time]],
        series: Mapping[CollectiveCase, TimesBySize],
        chosen: Mapping[CollectiveCase, Mapping[int, AlgorithmChoice]],
    ) -> "EagerLimitOutcome":
        """Interpolates gains between measured sizes linearly over the logarithm of the bytes."""
        gains: list[float] = []
        half_widths: list[float] = []
        for case in sorted(base):
            sizes = [size for size in chosen[case] if size in base[case]]
            times = [series[case][size][chosen[case][size]] for size in sizes]
            at = np.log(sizes)
            measured = [log(base[case][size].median / time.median) for size, time in zip(sizes, times, strict=True)]
            wanted = np.log(list(base[case]))
            gains += np.interp(wanted, at, measured).tolist()
            half_widths += np.interp(wanted, at, [half_width(time) for time in times]).tolist()
        return cls(series, chosen, tuple(gains), tuple(half_widths))

    @property
    def gain(self) -> float:
        return exp(sum(self.log_gains) / len(self.log_gains))

    @property
    def min_gain(self) -> float:
        return exp(min(self.log_gains))


def half_width(time: Time) -> float:
    """Half the width of the interval of the time's logarithm; very large if it is unknown."""
    return log(time.high / time.low) / 2 if time.low > 0 and time.high < inf else 1e9


def best_limit(found: Mapping[int | None, EagerLimitOutcome]) -> int | None:
    """The eager limit with the greatest gain among those that make no size slower.

    It must beat the library's own limit (None) beyond the noise.
    """
    own = found[None]
    for limit, outcome in sorted(found.items(), key=lambda one: (-one[1].gain, one[0] or 0)):
        better = log(outcome.gain / own.gain) > noise_between(outcome, own)
        if limit is not None and better and outcome.min_gain * MAX_SLOWDOWN_RATIO >= 1:
            return limit
    return None


def noise_between(one: EagerLimitOutcome, other: EagerLimitOutcome) -> float:
    """Half the width of the interval of the difference of two mean logarithms.

    The squares of independent half widths add up.
    """
    return sqrt(sum(width**2 for width in (*one.half_widths, *other.half_widths))) / len(one.half_widths)


def rules_of(case: CollectiveCase, chosen: Mapping[int, AlgorithmChoice]) -> list[Rule]:
    """The rules of one case; a rule ends at the geometric mean of two sizes.

    Below the smallest size the library decides; above the largest the last rule applies.
    """
    sizes = list(chosen)
    starts = [sizes[0], *(after for before, after in pairwise(sizes) if chosen[before] != chosen[after])]
    first = {start: isqrt(before * start) + 1 for before, start in pairwise(sizes)}
    first[sizes[0]] = 1 if chosen[sizes[0]] == LIBRARY else sizes[0]
    ends = [first[start] - 1 for start in starts[1:]]
    return [
        Rule.model_validate({**case._asdict(), **chosen[start].fields(), "bytes_min": first[start], "bytes_max": end})
        for start, end in zip(starts, [*ends, None], strict=True)
    ]


def rows_of(case: CollectiveCase, base: Mapping[int, Time], outcome: EagerLimitOutcome) -> list[SizeRow]:
    rows = []
    for size, choice in outcome.chosen[case].items():
        if size in base:
            times = outcome.series[case][size]
            best = min(time.median for time in times.values())
            rows.append(
                SizeRow(
                    **case._asdict(),
                    bytes=size,
                    choice=choice,
                    library_seconds=base[size].median,
                    table_seconds=times[choice].median,
                    best_seconds=best,
                    gain=base[size].median / times[choice].median,
                    significant=not times[choice].overlaps(base[size]),
                    undecided=times[choice].median > MAX_LOSS_RATIO * best,
                )
            )
    return rows
