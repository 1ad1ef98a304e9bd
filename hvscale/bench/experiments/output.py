"""The findings on a study's claims: text for the terminal, and a page with a table and figures."""

import plotly.graph_objects as go

from hvscale.bench.experiments.document import ExperimentDocument, StatementRow
from hvscale.bench.experiments.statements import StatementComparison
from hvscale.report.figures import BLUE, GREY, INK, ORANGE, error_bars, style
from hvscale.report.page import study_page
from hvscale.report.tables import TableModel

MAX_COMPARISONS = 4  # in a table, per claim; the figures and the JSON document have more
LARGE_PERCENT = 1e4
MAX_INTERVALS = 40  # in a figure, to keep it readable; the decisive ones come first
COLOURS = {True: BLUE, None: GREY, False: ORANGE}
MEANINGS = {True: "as claimed", None: "contains the limit", False: "the opposite"}
CAPTION = (
    "{confidence:.0%} intervals over interleaved starts; saves: (1 - time / other time) * 100; "
    "overhead: (time / other time - 1) * 100"
)


def text(document: ExperimentDocument) -> str:
    """Each claim with its verdict, its reason, and the decisive comparisons."""
    shown = [
        (row, [[one.what, *cells(one)] for one in row.comparisons[:MAX_COMPARISONS]]) for row in document.statements
    ]
    widths = [max((len(line[column]) for _, lines in shown for line in lines), default=0) for column in range(3)]
    parts = [document.title]
    for row, lines in shown:
        text_lines = [heading(row), f"  {row.reason}"]
        for what, percent, interval in lines:
            text_lines.append(f"    {what:<{widths[0]}}  {row.metric} {percent:>{widths[1]}}  {interval:>{widths[2]}}")
        more = len(row.comparisons) - len(lines)
        parts.append("\n".join([*text_lines, *([f"    and {more} more"] if more else [])]))
    return "\n\n".join([*parts, caption(document)])


def heading(row: StatementRow) -> str:
    return f"{row.claim}: {row.verdict}"


def cells(comparison: StatementComparison) -> list[str]:
    """The percentage and its interval; `-` for a single round."""
    low, high = comparison.percent_low, comparison.percent_high
    interval = "-" if low is None or high is None else f"{signed(low)} to {signed(high)}"
    return [signed(comparison.percent), interval]


def signed(percent: float) -> str:
    """One decimal, or two significant digits if large."""
    return f"{percent:+.1f}" if abs(percent) < LARGE_PERCENT else f"{percent:+.2g}"


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


def page(document: ExperimentDocument) -> str:
    """The page of `hvscale bench experiment`."""
    return study_page(
        document,
        what=f"{document.title} (part {document.part})",
        facts=[f"{one.name}: {one.problem or one.state}" for one in document.measurements],
        tables=[table(document)],
        figures={
            f"statement-{number}": (heading(row), intervals(row))
            for number, row in enumerate(document.statements, 1)
            if row.comparisons
        },
    )


def intervals(row: StatementRow) -> go.Figure:
    """A line for each comparison, coloured by the side of the (dotted) limit on which its interval
    lies.
    """
    figure = go.Figure()
    shown = row.comparisons[:MAX_INTERVALS]
    for agrees, colour in COLOURS.items():
        found = [one for one in shown if one.agrees is agrees]
        if found:
            figure.add_scatter(
                name=MEANINGS[agrees],
                x=[one.percent for one in found],
                y=[one.what for one in found],
                error_x=error_bars(
                    colour,
                    [(one.percent if one.percent_high is None else one.percent_high) - one.percent for one in found],
                    [one.percent - (one.percent if one.percent_low is None else one.percent_low) for one in found],
                ),
                mode="markers",
                marker={"color": colour, "size": 8},
                hovertemplate="%{y}: %{x:.4g}<extra></extra>",
            )
    style(figure, row.metric, "", height=140 + 24 * len(shown))
    limit = row.limit_percent or 0
    points = [limit, *(one.percent for one in shown)]
    span = max(points) - min(points) or 1
    # The intervals are cut off: with two noisy starts one can be a thousand times as wide.
    figure.update_xaxes(range=[min(points) - span, max(points) + span])
    figure.add_vline(x=limit, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_yaxes(categoryorder="array", categoryarray=[one.what for one in reversed(shown)])
    return figure
