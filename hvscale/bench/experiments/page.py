"""The page of `hvscale bench experiment`: the confidence intervals behind each finding."""

import plotly.graph_objects as go

from hvscale.bench.experiments.document import ExperimentDocument, StatementRow
from hvscale.bench.experiments.output import heading, table
from hvscale.report.figures import BLUE, GREY, INK, ORANGE, error_bars, style
from hvscale.report.page import study_page

MAX_INTERVALS = 40  # per claim, so that the figure stays readable; the decisive ones come first
COLOURS = {True: BLUE, None: GREY, False: ORANGE}
MEANINGS = {True: "as claimed", None: "contains the limit", False: "the opposite"}


def page(document: ExperimentDocument) -> str:
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
    """A line for each comparison, coloured by the side of the limit (dotted) on which its interval
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
    # An interval of two noisy starts may be a thousand times as wide.
    figure.update_xaxes(range=[min(points) - span, max(points) + span])
    figure.add_vline(x=limit, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_yaxes(categoryorder="array", categoryarray=[one.what for one in reversed(shown)])
    return figure
