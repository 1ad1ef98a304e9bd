"""The findings on a study's claims: text for the terminal, and a page with a table and figures."""

from collections.abc import Sequence

import plotly.graph_objects as go

from hvscale.bench.experiments.document import ExperimentDocument, StatementRow
from hvscale.bench.experiments.series import EFFICIENCY, Key, Series, describe
from hvscale.bench.experiments.statements import StatementComparison
from hvscale.bench.experiments.statements.shares import share
from hvscale.core.statistics import CONFIDENCE
from hvscale.core.units import is_narrow_change, signed_percent, signed_percent_interval
from hvscale.report.figures import BLUE, GREY, INK, ORANGE, colour, dash, error_bars, style
from hvscale.report.page import study_page
from hvscale.report.tables import TableModel

MAX_COMPARISONS = 4  # in a table, per claim; the figures and the JSON document have more
MAX_INTERVALS = 40  # in a figure, to keep it readable; the decisive ones come first
COLOURS = {True: BLUE, None: GREY, False: ORANGE}
MEANINGS = {True: "as claimed", None: "contains the limit", False: "the opposite"}
CAPTION = (
    "{confidence:.0%} intervals over interleaved starts; saves: (1 - time / other time) * 100; "
    "overhead: (time / other time - 1) * 100"
)


def text(document: ExperimentDocument, tables: Sequence[TableModel] = ()) -> str:
    """The measurements' tables, then each claim with its verdict, its reason, and the decisive
    comparisons.
    """
    shown = [
        (row, [[one.what, *cells(one)] for one in row.comparisons[:MAX_COMPARISONS]]) for row in document.statements
    ]
    widths = [max((len(line[column]) for _, lines in shown for line in lines), default=0) for column in range(3)]
    parts = [document.title, *map(table_text, tables)]
    for row, lines in shown:
        text_lines = [heading(row), f"  {row.reason}"]
        for what, percent, interval in lines:
            text_lines.append(f"    {what:<{widths[0]}}  {row.metric} {percent:>{widths[1]}}  {interval:>{widths[2]}}")
        more = len(row.comparisons) - len(lines)
        parts.append("\n".join([*text_lines, *([f"    and {more} more"] if more else [])]))
    return "\n\n".join([*parts, caption(document)])


def table_text(model: TableModel) -> str:
    """A table as lines of text."""
    lines = [line for rows in model.groups.values() for line in rows]
    widths = [max(len(line[column]) for line in [model.columns, *lines]) for column in range(len(model.columns))]

    def aligned(cells: Sequence[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    parts = [model.title, f"  {aligned(model.columns)}"]
    for group, rows in model.groups.items():
        parts += [*([f"  {group}"] if group else []), *(f"  {aligned(row)}" for row in rows)]
    return "\n".join([*parts, *(f"  {one}" for one in model.caption)])


def heading(row: StatementRow) -> str:
    return f"{row.claim}: {row.verdict}"


def cells(comparison: StatementComparison) -> list[str]:
    """The percentage and its interval; `-` for too few rounds."""
    interval = signed_percent_interval(comparison.percent_low, comparison.percent_high)
    return [signed_percent(comparison.percent), interval]


def caption(document: ExperimentDocument) -> str:
    return CAPTION.format(confidence=document.confidence)


def table(document: ExperimentDocument) -> TableModel:
    """A table with a group for each claim."""
    return TableModel(
        title="Claims and findings",
        columns=["", "", "percent", "interval"],
        groups={
            f"{heading(row)} ({row.reason})": [
                [one.what, row.metric, *cells(one)] for one in row.comparisons[:MAX_COMPARISONS]
            ]
            for row in document.statements
        },
        caption=[caption(document)],
    )


def page(document: ExperimentDocument, tables: Sequence[TableModel] = (), series: Sequence[Series] = ()) -> str:
    """The page of `hvscale bench experiment`: findings, the measurements' `tables`, and scaling
    efficiency by np as far as `series` have it.
    """
    return study_page(
        document,
        what=f"{document.title} (part {document.part})",
        facts=[f"{one.name}: {one.problem or one.state}" for one in document.measurements],
        tables=[table(document), *tables],
        figures=efficiency_figures(series)
        | {
            f"statement-{number}": (heading(row), intervals(row))
            for number, row in enumerate(document.statements, 1)
            if row.comparisons
        },
    )


def efficiency_figures(series: Sequence[Series]) -> dict[str, tuple[str, go.Figure]]:
    """Scaling efficiency by np for each program: a line for each of the settings and sources, and
    of the placements and devices if there are several.
    """
    figures = {}
    shown = [one for one in series if one.labels.get("operation") == EFFICIENCY]
    for program in dict.fromkeys(str(one.labels["program"]) for one in shown):
        figure = go.Figure()
        own = [one for one in shown if one.labels["program"] == program]
        jobs, sources = job_keys(own), list(dict.fromkeys(one.labels["source"] for one in own))
        lines: dict[str, list[Series]] = {}
        for one in own:
            lines.setdefault(describe(one.labels, {*jobs, "source"}), []).append(one)
        shades = list(dict.fromkeys(describe(one.labels, jobs) for one in own))
        for name, line in lines.items():
            shade = colour(shades.index(describe(line[0].labels, jobs)))
            add_line(figure, name, line, shade, dash(sources.index(line[0].labels["source"])))
        style(figure, "np", "scaling efficiency")
        figure.update_xaxes(type="log", tickvals=sorted({one.labels["np"] for one in own}))
        figure.update_yaxes(rangemode="tozero", tickformat=".0%")
        figures[f"efficiency-{program}"] = (f"Scaling efficiency: {program}", figure)
    return figures


def job_keys(series: Sequence[Series]) -> set[Key]:
    """The keys that distinguish the jobs in a figure of these series."""
    may_vary: tuple[Key, ...] = ("placement", "device")
    several = [key for key in may_vary if len({one.labels[key] for one in series if key in one.labels}) > 1]
    return {"settings", *several}


def add_line(figure: go.Figure, name: str, series: Sequence[Series], shade: str, line: str) -> None:
    """A point for each series with its interval, by np."""
    points = [
        (int(one.labels["np"]), share(one, CONFIDENCE)) for one in sorted(series, key=lambda one: int(one.labels["np"]))
    ]
    above = [((one.high if one.high is not None else one.percent) - one.percent) / 100 for _, one in points]
    below = [(one.percent - (one.low if one.low is not None else one.percent)) / 100 for _, one in points]
    figure.add_scatter(
        name=name,
        x=[np for np, _ in points],
        y=[one.percent / 100 for _, one in points],
        error_y=error_bars(shade, above, below),
        mode="lines+markers",
        line={"color": shade, "dash": line},
        hovertemplate="np %{x}: %{y:.1%}<extra></extra>",
    )


def drawn_ends(comparison: StatementComparison) -> list[float]:
    """The percentage, and the ends of its interval as far as the table shows them.

    Two noisy starts can give an interval of many powers of ten, beside which no other is visible.
    """
    low, high = comparison.percent_low, comparison.percent_high
    if low is None or high is None or not is_narrow_change(low, high):
        return [comparison.percent]
    return [comparison.percent, low, high]


def intervals(row: StatementRow) -> go.Figure:
    """A line for each comparison, coloured by the side of the (dotted) limit on which its interval
    lies.
    """
    figure = go.Figure()
    shown = row.comparisons[:MAX_INTERVALS]
    for agrees, shade in COLOURS.items():
        found = [one for one in shown if one.agrees is agrees]
        if found:
            figure.add_scatter(
                name=MEANINGS[agrees],
                x=[one.percent for one in found],
                y=[one.what for one in found],
                error_x=error_bars(
                    shade,
                    [(one.percent if one.percent_high is None else one.percent_high) - one.percent for one in found],
                    [one.percent - (one.percent if one.percent_low is None else one.percent_low) for one in found],
                ),
                mode="markers",
                marker={"color": shade, "size": 8},
                customdata=[cells(one)[1] for one in found],
                hovertemplate="%{y}: %{x:.4g}<br>%{customdata}<extra></extra>",
            )
    style(figure, row.metric, "", height=140 + 24 * len(shown))
    limit = row.limit_percent or 0
    ends = [limit, *(end for one in shown for end in drawn_ends(one))]
    margin = 0.05 * (max(ends) - min(ends)) or 1
    figure.update_xaxes(range=[min(ends) - margin, max(ends) + margin])
    figure.add_vline(x=limit, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_yaxes(categoryorder="array", categoryarray=[one.what for one in reversed(shown)])
    return figure
