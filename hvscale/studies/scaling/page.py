"""The page of `hvscale scale`."""

import plotly.graph_objects as go

from hvscale.core.units import is_narrow
from hvscale.report.figures import BLUE, error_bars, linear, style
from hvscale.report.page import study_page
from hvscale.studies.scaling.document import ScalingDocument, ScalingRow
from hvscale.studies.scaling.output import table


def page(document: ScalingDocument) -> str:
    """Table, throughput and efficiency over np. `document` holds at least one row."""
    figures = scaling_figures(document)
    library = document.library
    return study_page(
        document,
        command=" ".join(document.command),
        facts=[f"{document.scaling} scaling", *([library.name] if library is not None else [])],
        tables=[table(document)],
        figures={
            "throughput": ("Throughput", figures["throughput"]),
            "efficiency": ("Scaling efficiency", figures["efficiency"]),
        },
    )


def scaling_figures(document: ScalingDocument) -> dict[str, go.Figure]:
    """Throughput and scaling efficiency over np with their intervals, and what linear scaling would
    give, by the id of the page's element.
    """
    rows = document.rows
    base = next((row for row in rows if row.np == document.base_np), None)
    linear = [base.throughput * row.np / base.np for row in rows] if base is not None else []
    efficient = [row for row in rows if row.scaling_efficiency is not None]
    unit = document.unit or "throughput"
    return {
        "throughput": _lines(rows, "throughput", linear, unit, "{y:.4g}"),
        "efficiency": _lines(efficient, "scaling_efficiency", [1.0] * len(efficient), "scaling efficiency", "{y:.1%}"),
    }


def _lines(rows: list[ScalingRow], name: str, ideal: list[float], axis: str, shown: str) -> go.Figure:
    figure = go.Figure()
    ranks = [row.np for row in rows]
    if ideal:
        figure.add_trace(linear(ranks, ideal, "linear scaling"))
    values = [getattr(row, name) for row in rows]
    up, down = _reaches(rows, name)
    # A long error bar may leave the picture, but not make the curve flat.
    tops = [min(value + reach, 2 * value) for value, reach in zip(values, up, strict=True)]
    top = max([*ideal, *tops], default=1)
    figure.add_scatter(
        name="measured",
        x=ranks,
        y=values,
        mode="lines+markers",
        line={"color": BLUE, "width": 2},
        error_y=error_bars(BLUE, up, down),
        hovertemplate=f"np %{{x}}: %{shown}<extra></extra>",
    )
    style(figure, "np", axis)
    figure.update_xaxes(tickvals=ranks)
    figure.update_yaxes(range=[0, 1.1 * top], tickformat=".0%" if name == "scaling_efficiency" else None)
    return figure


def _reaches(rows: list[ScalingRow], name: str) -> tuple[list[float], list[float]]:
    """How far the intervals reach above and below; 0 where none is known."""
    up, down = [], []
    for row in rows:
        value, low, high = (getattr(row, column) for column in (name, f"{name}_low", f"{name}_high"))
        known = is_narrow(low, high)
        up.append(high - value if known else 0.0)
        down.append(value - low if known else 0.0)
    return up, down
