"""The HTML page of `hvscale tune --predict-np`."""

import html

import plotly.graph_objects as go

from hvscale.core.statistics import Estimate
from hvscale.core.units import is_narrow_change
from hvscale.prediction.tuning.document import PredictedTune, proof_table
from hvscale.report.figures import BLUE, INK, ORANGE, interval_points, style, style_bars
from hvscale.report.page import study_page

HEIGHT, ROW_HEIGHT = 130, 64  # pixels


def page(document: PredictedTune) -> str:
    """The table, predicted and replayed gains, and all settings that were searched."""
    figures = {}
    gains = gains_figure(document)
    if gains is not None:
        figures["gains"] = ("Gain over the recorded settings", gains)
    figures["search"] = (f"Searched settings, predicted for np {document.predict_np}", search_figure(document))
    return study_page(
        document,
        command=" ".join(document.command),
        facts=[document.verdict] if document.verdict is not None else [],
        tables=[proof_table(document)],
        figures=figures,
    )


def gains_figure(document: PredictedTune) -> go.Figure | None:
    """The gain of each candidate, predicted and replayed. None without a candidate."""
    candidates = [row for row in document.rows if row.name != document.baseline]
    if not candidates:
        return None
    series = {
        f"predicted, np {document.predict_np}": ("predicted_gain", BLUE),
        f"replayed, np {document.np}": ("replayed_gain", ORANGE),
    }
    figure = go.Figure()
    for name, (column, colour) in series.items():
        gains = {}
        for row in candidates:
            mean, low, high = (getattr(row, f"{column}{end}") for end in ("", "_low", "_high"))
            if mean is not None:
                gains[row.name] = Estimate(mean=mean, low=low, high=high).change_percent()
        figure.add_trace(interval_points(name, gains, colour, is_narrow_change, "+.1f"))
    style_bars(figure, "steps per second, % more", HEIGHT + ROW_HEIGHT * len(candidates))
    figure.update_layout(showlegend=True, scattermode="group")
    figure.update_yaxes(categoryorder="array", categoryarray=[html.escape(row.name) for row in candidates])
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    return figure


def search_figure(document: PredictedTune) -> go.Figure:
    """The predicted step of all settings of the search, best first."""
    figure = go.Figure()
    figure.add_scatter(
        name="predicted step",
        x=list(range(1, 1 + len(document.points))),
        y=[point.step_seconds for point in document.points],
        mode="markers",
        marker={"color": BLUE, "size": 6},
        customdata=[
            "<br>".join(html.escape(f"{knob}={text}") for knob, text in point.settings.items())
            for point in document.points
        ],
        hovertemplate="%{y:.4g} s<br>%{customdata}<extra></extra>",
    )
    style(figure, "settings, best first", "s a step")
    figure.update_yaxes(rangemode="tozero")
    return figure
