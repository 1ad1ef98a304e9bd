"""The HTML page of `hvscale scale`."""

import plotly.graph_objects as go

from hvscale.core.units import is_narrow
from hvscale.report.figures import BLUE, error_bars, linear, style
from hvscale.report.page import study_page
from hvscale.studies.scaling.document import ScalingDocument, ScalingRow, scaling_table

LABEL_DISTANCE = 0.07  # of the axis, so that labels stay apart on a narrow screen


def page(document: ScalingDocument) -> str:
    """The table, and throughput and efficiency over np. `document` has at least one row."""
    figures = scaling_figures(document)
    library = document.library
    return study_page(
        document,
        command=" ".join(document.command),
        facts=[f"{document.scaling} scaling", *([library.name] if library is not None else [])],
        tables=[scaling_table(document)],
        figures={
            "throughput": ("Throughput", figures["throughput"]),
            "efficiency": ("Scaling efficiency", figures["efficiency"]),
        },
    )


def scaling_figures(document: ScalingDocument) -> dict[str, go.Figure]:
    """Throughput and scaling efficiency over np with their intervals, and linear scaling.

    The keys are the ids of the page's elements.
    """
    rows = document.rows
    base = next((row for row in rows if row.np == document.base_np), None)
    ideal = [base.throughput * row.np / base.np for row in rows] if base is not None else []
    with_efficiency = [row for row in rows if row.scaling_efficiency is not None]
    unit = document.unit or "throughput"
    return {
        "throughput": _lines(rows, "throughput", ideal, unit, "{y:.4g}"),
        "efficiency": _lines(
            with_efficiency, "scaling_efficiency", [1.0] * len(with_efficiency), "scaling efficiency", "{y:.1%}"
        ),
    }


def _lines(rows: list[ScalingRow], name: str, ideal: list[float], axis: str, y_format: str) -> go.Figure:
    figure = go.Figure()
    ranks = [row.np for row in rows]
    if ideal:
        figure.add_trace(linear(ranks, ideal, "linear scaling"))
    values = [getattr(row, name) for row in rows]
    above, below = _error_bar_lengths(rows, name)
    # A long error bar is cut off, so that it does not flatten the curve.
    tops = [min(value + length, 2 * value) for value, length in zip(values, above, strict=True)]
    top = max([*ideal, *tops], default=1)
    figure.add_scatter(
        name="measured",
        x=ranks,
        y=values,
        mode="lines+markers",
        line={"color": BLUE, "width": 2},
        error_y=error_bars(BLUE, above, below),
        hovertemplate=f"np %{{x}}: %{y_format}<extra></extra>",
    )
    style(figure, "np", axis)
    figure.update_xaxes(tickvals=ranks, ticktext=_labels(ranks), tickangle=0)
    figure.update_yaxes(range=[0, 1.1 * top], tickformat=".0%" if name == "scaling_efficiency" else None)
    return figure


def _labels(ranks: list[int]) -> list[str]:
    """The label of each np; empty where the next larger one's would lie on it."""
    shown: list[int] = []
    for np in sorted(ranks, reverse=True):
        if not shown or shown[-1] - np >= LABEL_DISTANCE * max(ranks):
            shown.append(np)
    return [str(np) if np in shown else "" for np in ranks]


def _error_bar_lengths(rows: list[ScalingRow], name: str) -> tuple[list[float], list[float]]:
    """Lengths above and below each point; 0 without an interval."""
    above, below = [], []
    for row in rows:
        value, low, high = (getattr(row, column) for column in (name, f"{name}_low", f"{name}_high"))
        known = is_narrow(low, high)
        above.append(high - value if known else 0.0)
        below.append(value - low if known else 0.0)
    return above, below
