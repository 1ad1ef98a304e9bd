"""The decision table that follows from measurements: few rules, none of which rests on noise.

At each size the best is the choice with the least median of those that may be taken: the library's own, and what is faster than it beyond both
intervals. A choice will do at a size when its median is within 3 % of the best's, or within 5 % with overlapping intervals: such a difference is
noise, and the neighbour's choice is kept. Of all tables whose choices will do everywhere, and each of whose rules is proven faster than the
library somewhere in its range, the one with the fewest rules is taken, by a dynamic programme over the sizes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, isqrt, log, sqrt
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel

from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, Choice, Measurements, Place, Point, Time
from hvscale.comm_tuning.collectives.tables.table import CollectivesTable, Operation, Rule
from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError

LOSS = 1.03  # against the best at a size: what fewer rules may cost
NOISE = 1.05  # the same where the intervals overlap; more than this is taken for a difference whatever they say
SLOWER = 1.05  # than the library with nothing set: what a job's settings must not make any size

AtSize = Mapping[Choice, Time]
Series = Mapping[int, AtSize]  # by bytes


class SizeRow(BaseModel):
    """One size in one place. Medians in seconds: of the library with nothing set, of what the table takes, and of the best that was measured.

    `gain`: library to table. `apart`: the two differ beyond both intervals, else there is no difference. `undecided`: the best is more than 3 %
    faster than what is taken, but not beyond the noise: measure it again.
    """

    operation: Operation
    np: int
    ranks_per_node: int
    bytes: int
    choice: Choice
    library_seconds: float
    table_seconds: float
    best_seconds: float
    gain: float
    apart: bool
    undecided: bool


class EagerLimitRow(BaseModel):
    """What an eager limit comes to: `gain` is a geometric mean over all sizes, `least_gain` that of the worst; None where it was not measured."""

    eager_limit_bytes: int | None
    gain: float | None
    least_gain: float | None
    taken: bool


class Decision(VersionedDocument):
    """The table and what it rests on."""

    schema_: Literal["hvscale/collective-decision/1"] = "hvscale/collective-decision/1"
    table: CollectivesTable
    gain: float
    eager_limits: list[EagerLimitRow]
    rows: list[SizeRow]


def decide(measurements: Measurements) -> Decision:
    """Raises RequestError where the library with nothing set was not measured: there is nothing to be better than."""
    points = [point for point in measurements.points if not point.wrong]
    base = {place: at_sizes(series, LIBRARY) for place, series in by_place(points, None).items()}
    base = {place: sizes for place, sizes in base.items() if sizes}
    if not base:
        raise RequestError("no size at which the library was measured with nothing set: measure that first")
    limits = eager_limits(points)
    found = {}
    for limit in limits:
        series = by_place(points, limit)
        taken = {place: decide_sizes(with_own(series.get(place, {}))) for place in base}
        if all(any(size in base[place] for size in sizes) for place, sizes in taken.items()):
            found[limit] = Outcome.of(base, series, taken)
    best = best_limit(found)
    outcome = found[best]
    rules = [rule for place in sorted(base) for rule in rules_of(place, outcome.taken[place])]
    table = CollectivesTable(mpi=measurements.mpi, eager_limit_bytes=best, rule=rules)
    rows = [row for place in sorted(base) for row in rows_of(place, base[place], outcome)]
    return Decision(
        table=table,
        gain=outcome.gain,
        eager_limits=[
            EagerLimitRow(
                eager_limit_bytes=limit,
                gain=found[limit].gain if limit in found else None,
                least_gain=found[limit].least if limit in found else None,
                taken=limit == best,
            )
            for limit in limits
        ],
        rows=rows,
    )


def eager_limits(points: Iterable[Point]) -> list[int | None]:
    """All that some point has, the library's own first."""
    return sorted({point.eager_limit_bytes for point in points}, key=lambda limit: limit or 0)


def by_place(points: Iterable[Point], limit: int | None) -> dict[Place, dict[int, dict[Choice, Time]]]:
    """What was measured under the eager limit; samples of the same choice at the same size together."""
    samples: dict[Place, dict[int, dict[Choice, list[float]]]] = {}
    for point in points:
        if point.eager_limit_bytes == limit:
            sizes = samples.setdefault(point.place, {}).setdefault(point.bytes, {})
            sizes.setdefault(point.choice, []).extend(point.seconds)
    return {
        place: {
            size: {choice: Time.of(sizes[size][choice]) for choice in sorted(sizes[size], key=lambda one: one.order)}
            for size in sorted(sizes)
        }
        for place, sizes in samples.items()
    }


def with_own(series: Series) -> Series:
    """The sizes that can be decided: those at which the library's own choice was measured."""
    return {size: times for size, times in series.items() if LIBRARY in times}


def at_sizes(series: Series, choice: Choice) -> dict[int, Time]:
    return {size: times[choice] for size, times in series.items() if choice in times}


def proven(times: AtSize) -> list[Choice]:
    """The library's own choice, and what is faster beyond both intervals and by its median."""
    base = times[LIBRARY]
    return [
        choice
        for choice, time in times.items()
        if choice == LIBRARY or (time.high < base.low and time.median < base.median)
    ]


def best_of(times: AtSize) -> Choice:
    return min(proven(times), key=lambda choice: (times[choice].median, choice != LIBRARY, choice.order))


def will_do(times: AtSize) -> list[Choice]:
    """Those that lose no more than fewer rules are worth."""
    best = times[best_of(times)]
    return [
        choice
        for choice, time in times.items()
        if time.median <= LOSS * best.median or (time.median <= NOISE * best.median and time.overlaps(best))
    ]


class Cost(NamedTuple):
    """What a table costs, the first the most: rules, sizes at which their choices are not proven, and the logarithm of all losses."""

    rules: int = 0
    unproven: int = 0
    loss: float = 0.0


class Way(NamedTuple):
    """The cheapest table up to a size that ends with one choice: its `choices`, as numbers. Of equally cheap ones the first in order."""

    cost: Cost
    choices: tuple[int, ...]

    def then(self, choice: int, loss: float, rules: int, proven: bool) -> "Way":
        before = self.cost
        # Rounded: sums that differ in their order alone are equal.
        cost = Cost(before.rules + rules, before.unproven + (not proven), round(before.loss + loss, 9))
        return Way(cost, (*self.choices, choice))


def decide_sizes(series: Series) -> dict[int, Choice]:
    """The choice at each size, in the fewest rules. Always possible: with each size's best, every rule is the library's own or proven."""
    known = sorted({choice for times in series.values() for choice in times}, key=lambda choice: choice.order)
    # By the last choice, and whether its rule is proven somewhere: only then may another follow.
    ways: dict[tuple[int, bool], Way] = {}
    shortest = Way(Cost(), ())
    for times in series.values():
        best, sure = times[best_of(times)].median, proven(times)
        now: dict[tuple[int, bool], Way] = {}
        for choice in will_do(times):
            number, stands, loss = known.index(choice), choice in sure, log(times[choice].median / best)
            begun = [(stands, shortest.then(number, loss, 1, stands))]
            begun += [
                (stood or stands, way.then(number, loss, 0, stands))
                for (last, stood), way in ways.items()
                if last == number
            ]
            for stood, way in begun:
                now[number, stood] = min(way, now.get((number, stood), way))
        ways = now
        shortest = min(way for (_, stands), way in ways.items() if stands)
    return {size: known[number] for size, number in zip(series, shortest.choices, strict=True)}


@dataclass(frozen=True)
class Outcome:
    """An eager limit's choices by place and size, and its gains over the library with nothing set: all sizes of that one, `log_gains` and how well
    each is known without the base's own noise (`reach`, of the logarithm)."""

    series: Mapping[Place, Series]
    taken: Mapping[Place, Mapping[int, Choice]]
    log_gains: tuple[float, ...]
    reach: tuple[float, ...]

    @classmethod
    def of(
        cls,
        base: Mapping[Place, Mapping[int, Time]],
        series: Mapping[Place, Series],
        taken: Mapping[Place, Mapping[int, Choice]],
    ) -> "Outcome":
        """Between the sizes that both have, a gain lies on a line over the logarithm of the bytes."""
        gains: list[float] = []
        reaches: list[float] = []
        for place in sorted(base):
            sizes = [size for size in taken[place] if size in base[place]]
            times = [series[place][size][taken[place][size]] for size in sizes]
            at = np.log(sizes)
            measured = [log(base[place][size].median / time.median) for size, time in zip(sizes, times, strict=True)]
            wanted = np.log(list(base[place]))
            gains += np.interp(wanted, at, measured).tolist()
            reaches += np.interp(wanted, at, [half_width(time) for time in times]).tolist()
        return cls(series, taken, tuple(gains), tuple(reaches))

    @property
    def gain(self) -> float:
        return exp(sum(self.log_gains) / len(self.log_gains))

    @property
    def least(self) -> float:
        return exp(min(self.log_gains))


def half_width(time: Time) -> float:
    """Of the logarithm's interval."""
    return log(time.high / time.low) / 2 if time.low > 0 and time.high < inf else 1e9


def best_limit(found: Mapping[int | None, Outcome]) -> int | None:
    """The one with the greatest gain of those that make no size slower, where that is more than noise over leaving the library's own."""
    plain = found[None]
    for limit, outcome in sorted(found.items(), key=lambda one: (-one[1].gain, one[0] or 0)):
        better = log(outcome.gain / plain.gain) > noise_between(outcome, plain)
        if limit is not None and better and outcome.least * SLOWER >= 1:
            return limit
    return None


def noise_between(one: Outcome, other: Outcome) -> float:
    """Of the difference of their mean logarithms: the half widths of independent intervals add up as squares."""
    return sqrt(sum(reach**2 for reach in (*one.reach, *other.reach))) / len(one.reach)


def rules_of(place: Place, taken: Mapping[int, Choice]) -> list[Rule]:
    """Between two sizes a rule ends at their geometric mean. Below the least one the library decides, above the largest the last rule goes on."""
    sizes = list(taken)
    starts = [sizes[0], *(after for before, after in pairwise(sizes) if taken[before] != taken[after])]
    first = {start: isqrt(before * start) + 1 for before, start in pairwise(sizes)}
    first[sizes[0]] = 1 if taken[sizes[0]] == LIBRARY else sizes[0]
    ends = [first[start] - 1 for start in starts[1:]]
    return [
        Rule.model_validate({**place._asdict(), **taken[start].fields(), "bytes_min": first[start], "bytes_max": end})
        for start, end in zip(starts, [*ends, None], strict=True)
    ]


def rows_of(place: Place, base: Mapping[int, Time], outcome: Outcome) -> list[SizeRow]:
    rows = []
    for size, choice in outcome.taken[place].items():
        if size in base:
            times = outcome.series[place][size]
            best = min(time.median for time in times.values())
            rows.append(
                SizeRow(
                    **place._asdict(),
                    bytes=size,
                    choice=choice,
                    library_seconds=base[size].median,
                    table_seconds=times[choice].median,
                    best_seconds=best,
                    gain=base[size].median / times[choice].median,
                    apart=not times[choice].overlaps(base[size]),
                    undecided=times[choice].median > LOSS * best,
                )
            )
    return rows
