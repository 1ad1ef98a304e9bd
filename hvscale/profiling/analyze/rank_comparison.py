"""Names the ranks, nodes and local ranks that differ from the others, and the ranks to look at
first.

A value is an outlier if it is far from the median (a modified z-score beyond 3.5) and if the
difference matters: at least MIN_EFFECT of a rank's time in collectives, or of the median. That a
rank arrives last must also be more than chance.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.core.statistics import OUTLIER_SCORE, modified_z_scores, poisson_tail
from hvscale.core.units import human_number, human_seconds
from hvscale.profiling.analyze.breakdown import RankRow
from hvscale.profiling.analyze.ranks_and_nodes import (
    Figures,
    LocalRankFigures,
    NodeFigures,
    RankFigures,
    SummedCalls,
    local_rank_figures,
    node_figures,
    rank_figures,
)
from hvscale.profiling.read.profile_file import StepSums
from hvscale.profiling.read.rank_nodes import local_ranks

Floats = NDArray[np.float64]
FigureName = Literal[
    "seconds",
    "waiting_seconds",
    "caused_waiting_seconds",
    "transfer_seconds",
    "algbw_gigabytes_per_second",
    "steps",
    "step_seconds",
]

LOOK_AT = 8  # ranks
MIN_EFFECT = 0.05
# The probability that a job without a late rank has one named, if the last rank is drawn by lot.
CHANCE = 0.01
MIN_GROUPS = 3  # nodes, or local rank numbers; of fewer none can differ from the others


class Outlier(BaseModel):
    """A rank, or most ranks of a node or with a local rank number, with an unusual figure.

    Exactly one of `rank`, `node` and `local_rank` is given. `value` is that of the rank; of a group
    at least half of the ranks differ from the median as much. `median` is over all ranks.
    """

    figure: FigureName
    rank: int | None = None
    node: str | None = None
    local_rank: int | None = None
    value: float
    median: float
    modified_z_score: float


class Suspect(BaseModel):
    """A rank to look at, and why. `cost_seconds`: estimated time that each other rank loses by it;
    null if unknown, or if the rank rather loses time itself.
    """

    rank: int
    node: str
    local_rank: int
    reasons: list[str]
    cost_seconds: float | None


def lost_seconds(row: Figures, ranks: int, others: int, median_transfer: float) -> float:
    """Estimated time that each other rank loses by a group of `ranks` ranks.

    It is the waiting that the group caused, and its mean time to move data beyond the median. Where
    these are unknown: its mean time in collectives. `others`: all ranks but one.
    """
    if row.caused_waiting_seconds is None or row.transfer_seconds is None:
        return row.seconds / ranks
    return row.caused_waiting_seconds / max(others, 1) + max(row.transfer_seconds / ranks - median_transfer, 0)


class ByRank(BaseModel):
    """The figures of each recorded rank, of each node and of each local rank number, the unusual
    ones, and the ranks to look at first.
    """

    by_rank: list[RankFigures]
    by_node: list[NodeFigures]
    by_local_rank: list[LocalRankFigures]
    outliers: list[Outlier]
    look_at_first: list[Suspect]


class Find(NamedTuple):
    """An unusual figure of a rank, in a direction that needs a look."""

    figure: FigureName
    cost_seconds: float | None
    reason: str


@dataclass(frozen=True)
class _Column:
    """One figure of all ranks: arrays of one length, NaN for an unknown value."""

    name: FigureName
    values: Floats
    scores: Floats
    median: float
    min_effect: float

    def outliers(self, min_effect: float) -> NDArray[np.bool_]:
        distances = np.abs(self.values - self.median)
        found: NDArray[np.bool_] = (np.abs(self.scores) > OUTLIER_SCORE) & (distances >= min_effect)
        return found & (distances > 0)


class RankComparison:
    """Compares the figures of the recorded ranks with each other."""

    def __init__(self, by_rank: Sequence[RankFigures]) -> None:
        self.rows = list(by_rank)
        self.columns = {name: self._column(name) for name in get_args(FigureName)}

    def _column(self, name: FigureName) -> _Column:
        values = np.array([_number(getattr(row, name)) for row in self.rows])
        known = ~np.isnan(values)
        scores = np.zeros(len(values))
        scores[known] = modified_z_scores(values[known])
        median = float(np.median(values[known])) if known.any() else float("nan")
        in_collectives = float(np.median([row.seconds for row in self.rows])) if self.rows else 0.0
        if name == "caused_waiting_seconds":
            reference = in_collectives * max(len(self.rows) - 1, 1)  # it is a sum over the ranks that waited
        else:
            reference = in_collectives if name in ("seconds", "waiting_seconds", "transfer_seconds") else median
        return _Column(name, values, scores, median, MIN_EFFECT * reference)

    def outliers(self, nodes: Sequence[NodeFigures], local_ranks: Sequence[LocalRankFigures]) -> list[Outlier]:
        """Groups before ranks, and those with the largest score first."""
        return [*self.group_outliers(nodes), *self.group_outliers(local_ranks), *self.rank_outliers()]

    def rank_outliers(self) -> list[Outlier]:
        found = []
        for name, column in self.columns.items():
            for place in np.flatnonzero(column.outliers(column.min_effect)).tolist():
                if name == "caused_waiting_seconds" and not self._is_late([self.rows[place]]):
                    continue
                found.append(self._outlier(column, place, rank=self.rows[place].rank))
        return sorted(found, key=lambda one: -abs(one.modified_z_score))

    def group_outliers(self, groups: Sequence[NodeFigures] | Sequence[LocalRankFigures]) -> list[Outlier]:
        """Groups of several ranks, at least half of which are as unusual as `value`."""
        if len(groups) < MIN_GROUPS:
            return []
        place_of = {row.rank: place for place, row in enumerate(self.rows)}
        found = []
        for name, column in self.columns.items():
            for group in groups:
                places = [place_of[rank] for rank in group.ranks]
                nearest = _nearest_middle(column.values[places], column.median)
                if len(places) < 2 or nearest is None:
                    continue
                middle = places[nearest]
                # The others wait for one of these ranks at a time, so what they cause adds up.
                together = len(places) if name == "caused_waiting_seconds" else 1
                if not column.outliers(column.min_effect / together)[middle]:
                    continue
                if name == "caused_waiting_seconds" and not self._is_late([self.rows[place] for place in places]):
                    continue
                found.append(self._outlier(column, middle, **_name(group)))
        return sorted(found, key=lambda one: -abs(one.modified_z_score))

    def _outlier(self, column: _Column, place: int, **whose: int | str) -> Outlier:
        return Outlier(
            figure=column.name,
            value=float(column.values[place]),
            median=column.median,
            modified_z_score=float(column.scores[place]),
            **whose,  # type: ignore[arg-type]
        )

    def _is_late(self, rows: Sequence[RankFigures]) -> bool:
        """Whether the ranks were last more often than chance explains.

        The number of times is then Poisson-distributed; CHANCE is divided by the number of ranks
        (Bonferroni).
        """
        times, expected = sum(row.times_last or 0 for row in rows), sum(row.expected_times_last or 0 for row in rows)
        if times <= expected:
            return False
        return poisson_tail(times, expected) * len(self.rows) < CHANCE

    def typical_rank(self) -> int:
        """The rank nearest to the medians, of those with the fewest unknown figures."""
        columns = self.columns.values()
        worst = np.max([np.abs(column.scores) for column in columns], axis=0)
        unknown = np.sum([np.isnan(column.values) for column in columns], axis=0)
        return self.rows[int(np.lexsort((worst, unknown))[0])].rank


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _nearest_middle(values: Floats, median: float) -> int | None:
    """The place of the value that at least half of `values` reach or exceed, on one side of
    `median`; None if half of them are on each side.
    """
    order = np.argsort(values)
    low, high = int(order[(len(order) - 1) // 2]), int(order[len(order) // 2])
    if values[low] > median:
        return low
    return high if values[high] < median else None


def _name(group: Figures) -> dict[str, int | str]:
    if isinstance(group, NodeFigures):
        return {"node": group.node}
    return {"local_rank": group.local_rank} if isinstance(group, LocalRankFigures) else {}


def look_at_first(
    by_rank: Sequence[RankFigures], outliers: Iterable[Outlier], missing: Sequence[tuple[int, str, int]]
) -> list[Suspect]:
    """At most LOOK_AT ranks: those that cost the others most time, then those without a profile,
    then those that lose time themselves.

    Of a node or a local rank number with the same fault in most ranks, only the worst rank is
    named. `missing`: rank, node and local rank of those without a profile.
    """
    rows = {row.rank: row for row in by_rank}
    finds: defaultdict[int, dict[FigureName, Find]] = defaultdict(dict)
    waiting_known = any(row.waiting_seconds is not None for row in by_rank)
    outliers = list(outliers)
    for outlier in outliers:
        if outlier.rank is not None and (find := _find(rows[outlier.rank], outlier, len(rows), waiting_known)):
            finds[outlier.rank][outlier.figure] = find
    for outlier in outliers:
        if outlier.rank is None:
            _keep_worst(outlier, rows, finds, waiting_known)
    named = [_suspect(rows[rank], list(of_rank.values())) for rank, of_rank in finds.items() if of_rank]
    costly = sorted((one for one in named if one.cost_seconds), key=lambda one: -(one.cost_seconds or 0))
    lost = [
        Suspect(rank=rank, node=node, local_rank=local, reasons=["has no profile"], cost_seconds=None)
        for rank, node, local in missing
    ]
    return [*costly, *lost, *(one for one in named if not one.cost_seconds)][:LOOK_AT]


def _keep_worst(
    outlier: Outlier,
    rows: dict[int, RankFigures],
    finds: defaultdict[int, dict[FigureName, Find]],
    waiting_known: bool,
) -> None:
    """Replaces the same find of a group's ranks by one find of its worst rank."""
    members = [row for row in rows.values() if outlier.node in (None, row.node)]
    members = [row for row in members if outlier.local_rank in (None, row.local_rank)]
    sign = 1 if outlier.value > outlier.median else -1
    worst = max(members, key=lambda row: sign * _number(getattr(row, outlier.figure)))
    of_worst = outlier.model_copy(update={"value": _number(getattr(worst, outlier.figure))})
    find = _find(worst, of_worst, len(rows), waiting_known)
    if find is None:
        return
    for row in members:
        finds[row.rank].pop(outlier.figure, None)
    group = f"of {outlier.node}" if outlier.node is not None else f"with local rank {outlier.local_rank}"
    if outlier.figure == "caused_waiting_seconds":
        caused = sum(row.caused_waiting_seconds or 0 for row in members)
        find = find._replace(cost_seconds=caused / max(len(rows) - 1, 1))
    finds[worst.rank][outlier.figure] = find._replace(reason=f"{find.reason}; most ranks {group} do")


def _suspect(row: RankFigures, finds: list[Find]) -> Suspect:
    costs = [find.cost_seconds for find in finds if find.cost_seconds is not None]
    finds = sorted(finds, key=lambda find: -(find.cost_seconds or 0))
    if any(find.figure == "transfer_seconds" for find in finds):  # says the same as the bandwidth
        finds = [find for find in finds if find.figure != "algbw_gigabytes_per_second"]
    return Suspect(
        rank=row.rank,
        node=row.node,
        local_rank=row.local_rank,
        reasons=[find.reason for find in finds],
        cost_seconds=max(costs, default=None),
    )


def _find(row: RankFigures, outlier: Outlier, ranks: int, waiting_known: bool) -> Find | None:
    """What is to be looked at; None if the figure is unusual in a harmless direction."""
    made = _FINDS[outlier.figure](row, outlier, ranks, waiting_known)
    return None if made is None else Find(outlier.figure, *made)


Made = tuple[float | None, str] | None


def _arrives_last(row: RankFigures, outlier: Outlier, ranks: int, _: bool) -> Made:
    if outlier.value < outlier.median:
        return None
    cost, chance = outlier.value / max(ranks - 1, 1), human_number(row.expected_times_last, 2)
    return cost, (
        f"arrives last in {row.times_last} collectives ({chance} would be chance); the others waited "
        f"{human_seconds(outlier.value)} for it, {human_seconds(cost)} each"
    )


def _slow_transfer(row: RankFigures, outlier: Outlier, *_: object) -> Made:
    if outlier.value < outlier.median:
        return None
    return outlier.value - outlier.median, f"moves data slowly: for {_against_median(outlier)}"


def _slow_bandwidth(row: RankFigures, outlier: Outlier, *_: object) -> Made:
    if outlier.value > outlier.median or row.transfer_seconds is None:
        return None
    lost = row.transfer_seconds * (1 - outlier.value / outlier.median)
    return lost, f"moves data slowly: at {outlier.value:.3g} GB/s (median {outlier.median:.3g} GB/s)"


def _slow_steps(row: RankFigures, outlier: Outlier, *_: object) -> Made:
    if outlier.value < outlier.median:
        return None
    lost = (outlier.value - outlier.median) * (row.steps or 0)
    return lost, f"has longer steps: {_against_median(outlier)}"


def _other_steps(row: RankFigures, outlier: Outlier, *_: object) -> Made:
    return None, f"marked {outlier.value:.0f} steps (median {outlier.median:.0f})"


def _waits(row: RankFigures, outlier: Outlier, *_: object) -> Made:
    if outlier.value < outlier.median:
        return None
    return None, f"waits longer than others: {_against_median(outlier)}"


def _in_collectives(row: RankFigures, outlier: Outlier, _: int, waiting_known: bool) -> Made:
    if waiting_known:
        return None
    if outlier.value < outlier.median:
        return outlier.median - outlier.value, (
            f"is in collectives for only {_against_median(outlier)}: the others may wait for it"
        )
    return None, f"is in collectives for longer: {_against_median(outlier)}"


def _against_median(outlier: Outlier) -> str:
    return f"{human_seconds(outlier.value)} (median {human_seconds(outlier.median)})"


_FINDS: dict[FigureName, Callable[[RankFigures, Outlier, int, bool], Made]] = {
    "seconds": _in_collectives,
    "waiting_seconds": _waits,
    "caused_waiting_seconds": _arrives_last,
    "transfer_seconds": _slow_transfer,
    "algbw_gigabytes_per_second": _slow_bandwidth,
    "steps": _other_steps,
    "step_seconds": _slow_steps,
}


def compare_ranks(
    rows: Sequence[RankRow],
    ranks: Sequence[int],
    nodes: Mapping[int, str],
    summed: SummedCalls | None,
    step_marks: Mapping[int, NDArray[np.int64]],
    step_sums: Mapping[int, StepSums],
) -> ByRank:
    """Compares the recorded `ranks` with each other. `nodes`: of all ranks that have figures or
    should have them; the other arguments are as in `rank_figures`.
    """
    by_rank = rank_figures(rows, ranks, nodes, summed, step_marks, step_sums)
    by_node, by_local_rank = node_figures(by_rank, summed), local_rank_figures(by_rank, summed)
    outliers = RankComparison(by_rank).outliers(by_node, by_local_rank)
    local = local_ranks(dict(nodes))
    missing = [(rank, nodes[rank], local[rank]) for rank in sorted(set(nodes) - set(ranks))]
    return ByRank(
        by_rank=by_rank,
        by_node=by_node,
        by_local_rank=by_local_rank,
        outliers=outliers,
        look_at_first=look_at_first(by_rank, outliers, missing),
    )


def timeline_ranks(found: ByRank) -> dict[int, str]:
    """The ranks to draw, with their labels: all of at most LOOK_AT, or those to look at first and a
    typical one. Without a rank to look at: some ranks at equal distances.
    """
    recorded = [row.rank for row in found.by_rank]
    if len(recorded) <= LOOK_AT:
        return {rank: f"rank {rank}" for rank in recorded}
    nodes = {row.rank: row.node for row in found.by_rank} if len(found.by_node) > 1 else {}
    labels = {rank: f"rank {rank} ({nodes[rank]})" if nodes else f"rank {rank}" for rank in recorded}
    chosen = [suspect.rank for suspect in found.look_at_first if suspect.rank in labels]
    if not chosen:
        return {
            recorded[place]: labels[recorded[place]] for place in range(0, len(recorded), -(-len(recorded) // LOOK_AT))
        }
    typical = RankComparison(found.by_rank).typical_rank()
    return {rank: labels[rank] for rank in chosen} | {typical: f"{labels[typical]}, typical"}
