"""The figures of a report about many ranks: heat maps over time, and distributions over ranks."""

import html
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from hvscale.core.units import human_seconds
from hvscale.profiling.analyze.rank_comparison import MIN_EFFECT, ByRank, FigureName
from hvscale.profiling.analyze.ranks_and_nodes import TimeMap
from hvscale.report.figures import AXIS_TITLE_SIZE, BLUE, GREY, ORANGE, decade_ticks, style
from hvscale.studies.run_report.rank_tables import FIGURES

MAP_ROWS = 64  # of a heat map: 6 pixels each
LABELLED_ROWS = 16
HISTOGRAM_BINS = 24
MANY_DECADES = 2  # of its axis, on which ticks at powers of ten are enough
DRAWN: tuple[FigureName, ...] = (
    *("seconds", "waiting_seconds", "caused_waiting_seconds"),
    *("transfer_seconds", "algbw_gigabytes_per_second", "step_seconds"),
)
# One hue each, from white to dark: the lightness alone shows the value, also to colour-blind
# readers.
WAITING_SCALE = [[0, "#ffffff"], [0.75, ORANGE], [1, "#5c1f00"]]
MOVING_SCALE = [[0, "#ffffff"], [0.75, BLUE], [1, "#00233f"]]


@dataclass(frozen=True)
class MapRow:
    """A row of a heat map."""

    label: str
    ranks: list[int]


def map_rows(found: ByRank) -> list[MapRow]:
    """One row for each rank; of more than MAP_ROWS ranks one for each node, or for neighbouring
    nodes or ranks.
    """
    if len(found.by_rank) <= MAP_ROWS:
        several = len(found.by_node) > 1
        return [MapRow(f"{row.rank} ({row.node})" if several else str(row.rank), [row.rank]) for row in found.by_rank]
    groups = [(node.node, node.ranks) for node in found.by_node]
    if len(groups) == 1:
        groups = [(str(row.rank), [row.rank]) for row in found.by_rank]
    size = -(-len(groups) // MAP_ROWS)
    pieces = [groups[first : first + size] for first in range(0, len(groups), size)]
    return [
        MapRow(
            piece[0][0] if len(piece) == 1 else f"{piece[0][0]} to {piece[-1][0]}",
            [rank for _, ranks in piece for rank in ranks],
        )
        for piece in pieces
    ]


def rows_are(found: ByRank) -> str:
    """What a row of the heat map stands for."""
    if len(found.by_rank) <= MAP_ROWS:
        return "rank"
    groups = len(found.by_node) if len(found.by_node) > 1 else len(found.by_rank)
    what = "node" if len(found.by_node) > 1 else "rank"
    return what if groups <= MAP_ROWS else f"group of {-(-groups // MAP_ROWS)} neighbouring {what}s"


def heat_map(times: TimeMap, found: ByRank) -> go.Figure:
    """Waiting above, moving data below: the share of each row's time, over the run."""
    rows = map_rows(found)
    seconds_per_bin = times.bin_ns / 1e9
    shares = {
        name: np.stack([seconds[row.ranks].mean(axis=0) for row in rows]) / seconds_per_bin * 100
        for name, seconds in (("waiting", times.waiting_seconds), ("moving data", times.transfer_seconds))
    }
    # A few extreme values do not make all others pale.
    brightest = max(float(np.percentile(percent, 99.5)) for percent in shares.values())
    limit = min(100, 10 * max(1, int(np.ceil(brightest / 10))))
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    labels = [html.escape(row.label) for row in rows]
    height = max(6 * len(rows), min(18 * len(rows), 320))
    for place, (name, scale) in enumerate((("waiting", WAITING_SCALE), ("moving data", MOVING_SCALE)), 1):
        figure.add_heatmap(
            z=np.clip(np.round(shares[name]), 0, 255).astype(np.uint8),
            y=labels,
            x0=seconds_per_bin / 2,
            dx=seconds_per_bin,
            zmin=0,
            zmax=limit,
            colorscale=scale,
            colorbar={
                "title": {"text": name, "side": "right"},
                "ticksuffix": " %",
                "thickness": 12,
                "len": 0.47,
                "y": 0.765 if place == 1 else 0.235,
                "outlinewidth": 0,
            },
            hovertemplate=f"%{{y}}, %{{x:.4g}} s<br>{name}: %{{z}} %<extra></extra>",
            row=place,
            col=1,
        )
    style(figure, "", "", height=2 * height + 130)
    labelled = _labelled_rows(rows, {suspect.rank for suspect in found.look_at_first})
    figure.update_yaxes(
        autorange="reversed",
        tickvals=[labels[place] for place in labelled],
        ticktext=[f"<b>{labels[place]}</b>" if is_first else labels[place] for place, is_first in labelled.items()],
        ticksuffix="  ",
        showgrid=False,
        type="category",
        title={"text": rows_are(found), "font_size": AXIS_TITLE_SIZE, "standoff": 14},
    )
    figure.update_xaxes(showgrid=False, zeroline=False, rangemode="tozero")
    figure.update_xaxes(title={"text": "seconds since the first call", "font_size": AXIS_TITLE_SIZE}, row=2)
    figure.update_layout(showlegend=False)
    return figure


def _labelled_rows(rows: list[MapRow], first: set[int]) -> dict[int, bool]:
    """The rows with a label; True for those of ranks to look at first."""
    step = -(-len(rows) // LABELLED_ROWS)
    found = {place: True for place, row in enumerate(rows) if first & set(row.ranks)}
    regular = [
        place for place in range(0, len(rows), step) if all(abs(place - other) > 2 or step == 1 for other in found)
    ]
    return dict.fromkeys(regular, False) | found


def distribution_figures(found: ByRank) -> dict[FigureName, go.Figure]:
    """A histogram over ranks of each figure that is known and differs between ranks."""
    drawn = {}
    for name in DRAWN:
        values = np.array([getattr(row, name) for row in found.by_rank if getattr(row, name) is not None], np.float64)
        if len(values) == len(found.by_rank) and np.ptp(values):
            drawn[name] = _histogram(name, values, found)
    return drawn


def _histogram(name: FigureName, values: NDArray[np.float64], found: ByRank) -> go.Figure:
    """On a logarithmic axis, on which one rank of hundreds can be seen."""
    unusual = {one.rank for one in found.outliers if one.figure == name}
    is_outlier = np.array([row.rank in unusual for row in found.by_rank])
    # At least as wide as the smallest difference that matters, so that small ones look small.
    median = float(np.median(values))
    low, high = min(values.min(), (1 - MIN_EFFECT) * median), max(values.max(), (1 + MIN_EFFECT) * median)
    edges = np.linspace(low, high, HISTOGRAM_BINS + 1)
    shown = FIGURES[name]
    figure = go.Figure()
    for chosen, colour in ((~is_outlier, GREY), (is_outlier, ORANGE)):
        counts, _ = np.histogram(values[chosen], edges)
        used = np.flatnonzero(counts)
        figure.add_bar(
            x=((edges[1:] + edges[:-1]) / 2)[used],
            y=counts[used],
            width=float(edges[1] - edges[0]),
            marker_color=colour,
            customdata=[f"{shown.human(edges[place])} to {shown.human(edges[place + 1])}" for place in used],
            hovertemplate="%{y} ranks: %{customdata}<extra></extra>",
        )
    style(figure, f"{shown.label} ({shown.unit})" if shown.unit else shown.label, "ranks", height=210)
    most = float(np.histogram(values, edges)[0].max())
    for x, y, text in _outlier_labels(values, edges, is_outlier, found):
        anchor = "left" if x < (low + high) / 2 else "right"
        where = {"x": x, "y": float(np.log10(y)), "xanchor": anchor, "yanchor": "bottom"}
        figure.add_annotation(text=text, showarrow=False, font={"size": 12, "color": ORANGE}, **where)
    figure.update_layout(showlegend=False, barmode="overlay", margin={"l": 8, "r": 20, "t": 12, "b": 40})
    pad = 0.03 * (high - low)
    figure.update_xaxes(range=[low - pad, high + pad], nticks=6)
    figure.update_yaxes(type="log", range=np.log10([0.5, 2 * most]).tolist(), **decade_ticks(1, most, MANY_DECADES))
    return figure


def _outlier_labels(
    values: NDArray[np.float64], edges: NDArray[np.float64], is_outlier: NDArray[np.bool_], found: ByRank
) -> Iterator[tuple[float, int, str]]:
    """For the lowest and the highest bin with outliers: its centre, its count, and their names."""
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    used = np.unique(bins[is_outlier]).tolist()
    for number in sorted({*used[:1], *used[-1:]}):
        ranks = [found.by_rank[place].rank for place in np.flatnonzero(is_outlier & (bins == number)).tolist()]
        text = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
        yield float(edges[number] if number < len(edges) // 2 else edges[number + 1]), len(ranks), text


def heat_map_caption(times: TimeMap, found: ByRank) -> str:
    """How much of the time is waiting, and how to read the map."""
    waiting, moving = float(times.waiting_seconds.sum()), float(times.transfer_seconds.sum())
    share = waiting / ((waiting + moving) or 1)
    return (
        f"{share:.0%} of the time in matched collectives is waiting. A row is a {rows_are(found)}, a column "
        f"{human_seconds(times.bin_ns / 1e9)}; the colour is the share of the row's time. A light row under dark ones in "
        "the upper map is the one that the others wait for; a dark column is a moment when the whole job waits; a dark "
        "row in the lower map moves data slowly. Bold: rows with a rank to look at first."
    )


def distribution_caption(found: ByRank) -> str:
    """Whether ranks differ, and by which rule."""
    ranks = {one.rank for one in found.outliers if one.rank is not None}
    count = f"{len(ranks)} of {len(found.by_rank)} ranks" if ranks else f"None of {len(found.by_rank)} ranks"
    return (
        f"{count} {'is an outlier' if len(ranks) < 2 else 'are outliers'} (orange): more than 3.5 scaled median absolute "
        "deviations from the median (Iglewicz and Hoaglin, 1993), and by at least 5 % of a rank's time in collectives, or "
        "of the median of bandwidth and step."
    )
