"""The HTML page of `hvscale compare-settings` and `hvscale compare-placements`."""

import html
from pathlib import Path

import plotly.graph_objects as go

from hvscale.core.units import is_narrow, is_narrow_change
from hvscale.report.figures import BLUE, GREY, INK, interval_points, style_bars
from hvscale.report.page import study_page
from hvscale.studies.comparison.summary import SummaryDocument, SummaryRow, summary_table
from hvscale.studies.run_report.figures import comparison_figures

HEIGHT, ROW_HEIGHT = 130, 46  # pixels


def page(document: SummaryDocument) -> str:
    """The table, the results with their intervals, and the communication by message size.

    `document` has at least one row.
    """
    table = summary_table(document)
    what = "Throughput" if document.measured_by == "throughput" else "Time"
    figures = {"results": (what, results_figure(document))}
    changed = [row for row in document.summary() if row.change_percent is not None]
    if changed:
        heading = f"{document.change.capitalize()} over {document.baseline}"
        figures["change"] = (heading, change_figure(changed, f"{document.change} %"))
    for number, profile in enumerate(document.profiles):
        if profile.rows:
            before, after = (Path(run).name for run in (profile.run_before, profile.run_after))
            figure = comparison_figures(profile)["seconds"]
            figures[f"messages-{number}"] = (f"Communication: {before} (before) and {after} (after)", figure)
    return study_page(
        document,
        command=" ".join(document.command),
        facts=[f"np {document.np}"],
        tables=[table.model_copy(update={"caption": [*table.caption, *document.sentences()]}), *document.details()],
        figures=figures,
    )


def results_figure(document: SummaryDocument) -> go.Figure:
    """Each start, and the mean of each variant's starts with its interval."""
    measure = document.measured_by or "throughput"
    rows = [row for row in document.summary() if row.measured is not None]
    starts = [(row.name, value) for row in rows for value in document.measured(row.name, measure).values()]
    figure = go.Figure()
    figure.add_scatter(
        name="starts",
        x=[value for _, value in starts],
        y=[html.escape(name) for name, _ in starts],
        mode="markers",
        marker={"color": GREY, "size": 7},
        hovertemplate="%{y}: %{x:.4g}<extra></extra>",
    )
    means = {row.name: row.measured for row in rows if row.measured is not None}
    figure.add_trace(interval_points("mean and interval", means, BLUE, is_narrow, ".4g"))
    style_bars(figure, document.unit or "throughput", HEIGHT + ROW_HEIGHT * len(rows))
    figure.update_layout(showlegend=True)
    figure.update_xaxes(rangemode="tozero")
    return figure


def change_figure(rows: list[SummaryRow], axis: str) -> go.Figure:
    """The change of each variant against the baseline, with its interval."""
    changes = {row.name: row.change_percent for row in rows if row.change_percent is not None}
    figure = go.Figure(interval_points(axis, changes, BLUE, is_narrow_change, "+.1f"))
    style_bars(figure, axis, HEIGHT + ROW_HEIGHT * len(rows))
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    return figure
