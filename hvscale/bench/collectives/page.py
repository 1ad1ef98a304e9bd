"""A measurement as one HTML page that needs no network: latency and bandwidth over size, a line for each back end, crossovers marked."""

from pathlib import Path

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hvscale import __version__
from hvscale.bench.collectives.document import BenchDocument, BenchRow, main_rows
from hvscale.bench.collectives.output import tables
from hvscale.core.units import human_bytes
from hvscale.report.figures import GREY, INK, OPERATION_COLOURS, RULE, script_safe
from hvscale.report.page import TEMPLATES


def page(document: BenchDocument) -> str:
    """`document` holds at least one row."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("bench.html.j2").render(
        document=document,
        title=Path(document.folder).name,
        table=tables(document, "nccl-tests"),
        figures=Markup(script_safe(bench_figures(document))),  # noqa: S704 - made safe there
        plotly=Markup(get_plotlyjs()),  # noqa: S704 - Plotly's own file
        version=__version__,
    )


def bench_figures(document: BenchDocument) -> dict[str, go.Figure]:
    """By the id of the page's element."""
    return {
        "latency": _lines(document, "seconds", 1e6, "time of a call, us"),
        "bandwidth": _lines(document, "busbw_gigabytes_per_second", 1, "busbw, 10^9 bytes a second"),
    }


def _lines(document: BenchDocument, name: str, unit: float, axis: str) -> go.Figure:
    figure = go.Figure()
    names = list(dict.fromkeys(row.backend for row in document.rows))
    for number, backend in enumerate(names):
        colour = OPERATION_COLOURS[number % len(OPERATION_COLOURS)]
        rows = [row for row in document.rows if row.backend == backend]
        shown = main_rows(rows)
        others = [row for row in rows if row not in shown]
        figure.add_trace(_line(shown, name, unit, colour))
        if others:
            # Nearly the same line again: dashed, and hidden until it is asked for.
            figure.add_trace(_line(others, name, unit, colour, beside=True))
    for crossover in document.crossovers:
        figure.add_vline(
            x=crossover.bytes,
            line={"color": GREY, "width": 1, "dash": "dot"},
            annotation={"text": f"{human_bytes(crossover.bytes)}: {crossover.faster_above}", "font_size": 11},
        )
    figure.update_layout(
        template="none",
        height=420,
        margin={"l": 8, "r": 16, "t": 56, "b": 48},
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.08, "xanchor": "left", "yanchor": "bottom"},
        hoverlabel={"bgcolor": "white", "font_color": INK},
    )
    sizes = sorted({row.bytes for row in document.rows})
    ticks = sizes[:: max(1, len(sizes) // 10)]
    figure.update_xaxes(
        title={"text": "size", "font_size": 13},
        type="log" if sizes[0] > 0 else "linear",
        tickvals=ticks,
        ticktext=[human_bytes(size) for size in ticks],
        gridcolor=RULE,
        automargin=True,
    )
    zero = any(getattr(row, name) <= 0 for row in document.rows)
    figure.update_yaxes(
        title={"text": axis, "font_size": 13}, type="linear" if zero else "log", gridcolor=RULE, automargin=True
    )
    return figure


def _line(rows: list[BenchRow], name: str, unit: float, colour: str, beside: bool = False) -> go.Scatter:
    values = [unit * getattr(row, name) for row in rows]
    label = rows[0].backend + (", in place" if rows[0].in_place else "")
    reach = [unit * ((row.seconds_high or row.seconds) - row.seconds) for row in rows] if name == "seconds" else None
    return go.Scatter(
        name=label,
        x=[row.bytes for row in rows],
        y=values,
        mode="lines+markers",
        visible="legendonly" if beside else True,
        line={"color": colour, "width": 2, "dash": "dash" if beside else "solid"},
        error_y={"type": "data", "array": reach, "color": colour, "thickness": 1} if reach else None,
        text=[human_bytes(row.bytes) for row in rows],
        hovertemplate=f"{label}, %{{text}}: %{{y:.4g}}<extra></extra>",
    )
