"""The figures of ranks and nodes, as tables for the terminal and for pages, the costliest rows
first.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from hvscale.core.units import human_seconds
from hvscale.profiling.analyze.rank_comparison import ByRank, FigureName, Outlier, Suspect, lost_seconds
from hvscale.profiling.analyze.ranks_and_nodes import Figures, RankFigures
from hvscale.report.tables import TableModel

ROWS = 16  # of a table in the terminal
NAMED = 4  # outliers in a cell
LONGEST_NODE = 20  # letters


class ShownFigure(NamedTuple):
    """How a figure is called and written."""

    label: str
    column: str
    human: Callable[[float], str]
    unit: str  # of an axis


def _gigabytes(value: float) -> str:
    return f"{value:.3g} GB/s"


FIGURES: dict[FigureName, ShownFigure] = {
    "seconds": ShownFigure("time in collectives", "collectives", human_seconds, "s"),
    "waiting_seconds": ShownFigure("waiting", "waiting", human_seconds, "s"),
    "caused_waiting_seconds": ShownFigure("waiting it caused", "caused", human_seconds, "s, all other ranks"),
    "transfer_seconds": ShownFigure("moving data", "moving", human_seconds, "s"),
    "algbw_gigabytes_per_second": ShownFigure("algbw while moving", "algbw", _gigabytes, "GB/s"),
    "steps": ShownFigure("steps", "steps", lambda value: f"{value:.0f}", ""),
    "step_seconds": ShownFigure("time of a step", "step", human_seconds, "s"),
}
# Shown as means over the ranks of a node. Waiting that they cause adds up.
MEANS: tuple[FigureName, ...] = ("seconds", "waiting_seconds", "transfer_seconds", "steps")
COLUMNS: tuple[FigureName, ...] = (
    *("caused_waiting_seconds", "waiting_seconds", "transfer_seconds", "algbw_gigabytes_per_second"),
    *("seconds", "step_seconds"),
)


def rank_tables(found: ByRank) -> Iterator[TableModel]:
    """A table of ranks and, if the ranks are on several nodes, of nodes and local ranks."""
    yield ranks_table(found, ROWS)
    if len(found.by_node) > 1:
        yield nodes_table(found, ROWS)
        if len(found.by_local_rank) > 1:
            yield local_ranks_table(found, ROWS)


def ranks_table(found: ByRank, rows: int) -> TableModel:
    """The `rows` ranks that cost the others most time."""
    columns = ["rank", "node"] if len(found.by_node) > 1 else ["rank"]
    return _table(
        "by rank",
        columns,
        [([str(row.rank), _shortened(row.node)][: len(columns)], row, 1) for row in found.by_rank],
        found,
        rows,
        "ranks",
    )


def nodes_table(found: ByRank, rows: int) -> TableModel:
    """The `rows` nodes that cost most time, each with means over its ranks."""
    return _table(
        "by node, means over its ranks",
        ["node", "ranks"],
        [([_shortened(row.node), str(len(row.ranks))], row, len(row.ranks)) for row in found.by_node],
        found,
        rows,
        "nodes",
    )


def local_ranks_table(found: ByRank, rows: int) -> TableModel:
    """The `rows` local rank numbers that cost most time, each with means over its ranks."""
    return _table(
        "by local rank, means over its ranks",
        ["local rank", "ranks"],
        [([str(row.local_rank), str(len(row.ranks))], row, len(row.ranks)) for row in found.by_local_rank],
        found,
        rows,
        "local ranks",
    )


def _table(
    title: str,
    first: list[str],
    entries: Sequence[tuple[list[str], Figures, int]],
    found: ByRank,
    rows: int,
    what: str,
) -> TableModel:
    transfers = [row.transfer_seconds for row in found.by_rank if row.transfer_seconds is not None]
    median = float(np.median(transfers)) if transfers else 0.0
    others = len(found.by_rank) - 1
    ordered = sorted(entries, key=lambda entry: -lost_seconds(entry[1], entry[2], others, median))
    columns = [name for name in COLUMNS if any(getattr(row, name) is not None for _, row, _ in entries)]
    more = len(ordered) - rows
    documents = "--json or --csv" if what == "ranks" else "--json"
    caption = [f"{more} more {what}: hvscale breakdown {documents} lists all"] if more > 0 else []
    if "caused_waiting_seconds" in columns:
        caption.append("caused: how long the other ranks waited, summed; algbw: while moving data")
    return TableModel(
        title=title,
        columns=[*first, *(FIGURES[name].column for name in columns)],
        groups={"": [[*words, *(_cell(row, name, ranks) for name in columns)] for words, row, ranks in ordered[:rows]]},
        caption=caption,
    )


def _cell(row: Figures, name: FigureName, ranks: int) -> str:
    value = getattr(row, name)
    if value is None:
        return "-"
    return FIGURES[name].human(value / ranks if name in MEANS else value)


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NODE else f"{name[: LONGEST_NODE - 3]}..."


def where(row: RankFigures | Suspect, found: ByRank) -> str:
    """`rank 12 (node001, local rank 4)`; only `rank 12` if all ranks are on one node."""
    if len(found.by_node) < 2:
        return f"rank {row.rank}"
    return f"rank {row.rank} ({row.node}, local rank {row.local_rank})"


def look_at_first_lines(found: ByRank) -> Iterator[RenderableType]:
    """A line for each rank to look at first, with the reasons."""
    if found.look_at_first:
        yield Text("\nranks to look at first", style="italic")
    for suspect in found.look_at_first:
        yield Text(f"{where(suspect, found)}: {'; '.join(suspect.reasons)}")


def distribution_table(found: ByRank) -> TableModel:
    """The median, the range and the outliers of each figure."""
    rows = []
    by_figure: defaultdict[FigureName, list[Outlier]] = defaultdict(list)
    for outlier in found.outliers:
        by_figure[outlier.figure].append(outlier)
    for name, shown in FIGURES.items():
        known = [(getattr(row, name), row.rank) for row in found.by_rank if getattr(row, name) is not None]
        if known:
            (least, _), (most, _) = min(known), max(known)
            median = float(np.median([value for value, _ in known]))
            rows.append([shown.label, *map(shown.human, (least, median, most)), _names(by_figure[name], found)])
    return TableModel(
        title="",
        columns=["figure of a rank", "least", "median", "most", "outliers"],
        groups={"": rows},
    )


def _names(outliers: Sequence[Outlier], found: ByRank) -> str:
    """The nodes, local ranks and ranks that are outliers, without the ranks of a named group."""
    nodes = {one.node for one in outliers if one.node is not None}
    local = {one.local_rank for one in outliers if one.local_rank is not None}
    rows = {row.rank: row for row in found.by_rank}
    ranks = [rows[one.rank] for one in outliers if one.rank is not None]
    named = [
        *(f"most ranks of {node}" for node in sorted(nodes)),
        *(f"most ranks with local rank {number}" for number in sorted(local)),
        *(where(row, found) for row in ranks if row.node not in nodes and row.local_rank not in local),
    ]
    if not named:
        return "none"
    return ", ".join(named[:NAMED]) + (f" and {len(named) - NAMED} more" if len(named) > NAMED else "")
