"""A measurement of scaling as one HTML page that needs no network."""

from pathlib import Path

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hvscale import __version__
from hvscale.core.units import is_narrow
from hvscale.report.figures import BLUE, GREY, INK, RULE, script_safe
from hvscale.report.page import TEMPLATES
from hvscale.studies.scaling.document import ScalingDocument, ScalingRow
from hvscale.studies.scaling.output import caption, cells, columns


def page(document: ScalingDocument) -> str:
    """Table, throughput and efficiency over np. `document` holds at least one row."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("scale.html.j2").render(
        document=document,
        title=Path(document.folder).name,
        columns=columns(document),
        rows=[cells(row) for row in document.rows],
        caption=caption(document).splitlines(),
        figures=Markup(script_safe(scaling_figures(document))),  # noqa: S704 - made safe there
        plotly=Markup(get_plotlyjs()),  # noqa: S704 - Plotly's own file
        version=__version__,
    )


def scaling_figures(document: ScalingDocument) -> dict[str, go.Figure]:
    """Throughput and scaling efficiency over np with their intervals, and what linear scaling would give, by the id of the page's element."""
    rows = document.rows
    base = next((row for row in rows if row.np == document.base_np), None)
    linear = [base.throughput * row.np / base.np for row in rows] if base is not None else []
    efficient = [row for row in rows if row.scaling_efficiency is not None]
    unit = document.unit or "throughput"
    return {
        "throughput": _lines(rows, "throughput", linear, unit, "{y:.4g}"),
        "efficiency": _lines(efficient, "scaling_efficiency", [1.0] * len(efficient), "scaling efficiency", "{y:.1%}"),
    }


def _lines(rows: list[ScalingRow], name: str, linear: list[float], axis: str, shown: str) -> go.Figure:
    figure = go.Figure()
    ranks = [row.np for row in rows]
    if linear:
        line = {"color": GREY, "width": 1.5, "dash": "dash"}
        figure.add_scatter(name="linear scaling", x=ranks, y=linear, mode="lines", line=line, hoverinfo="skip")
    values = [getattr(row, name) for row in rows]
    up, down = _reaches(rows, name)
    # A long error bar may leave the picture, but not make the curve flat.
    tops = [min(value + reach, 2 * value) for value, reach in zip(values, up, strict=True)]
    top = max([*linear, *tops], default=1)
    figure.add_scatter(
        name="measured",
        x=ranks,
        y=values,
        mode="lines+markers",
        line={"color": BLUE, "width": 2},
        error_y={"type": "data", "symmetric": False, "array": up, "arrayminus": down, "color": BLUE, "thickness": 1.2},
        hovertemplate=f"np %{{x}}: %{shown}<extra></extra>",
    )
    figure.update_layout(
        template="none",
        height=340,
        margin={"l": 8, "r": 16, "t": 40, "b": 48},
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
        hoverlabel={"bgcolor": "white", "font_color": INK},
    )
    figure.update_xaxes(title={"text": "np", "font_size": 13}, tickvals=ranks, gridcolor=RULE, automargin=True)
    figure.update_yaxes(
        title={"text": axis, "font_size": 13},
        range=[0, 1.1 * top],
        gridcolor=RULE,
        automargin=True,
        tickformat=".0%" if name == "scaling_efficiency" else None,
    )
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
