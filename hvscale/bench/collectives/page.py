"""The page of `hvscale bench`: latency and bandwidth over size, a line for each back end."""

import plotly.graph_objects as go

from hvscale.bench.collectives.document import BenchDocument, BenchRow, rows_to_compare
from hvscale.bench.collectives.output import tables
from hvscale.core.units import human_bytes
from hvscale.report.figures import GREY, colour, error_bars, style
from hvscale.report.page import render_page, study_facts, title


def page(document: BenchDocument) -> str:
    """The HTML page of a document with at least one row."""
    libraries = [f"{entry.name}: {entry.library or entry.problem or entry.state}" for entry in document.backends]
    return render_page(
        "bench.html.j2",
        bench_figures(document),
        title=title(document),
        what=f"{document.collective} on {document.np} ranks, {document.dtype} in {document.device} memory",
        facts=[*libraries, *study_facts(document)],
        warnings=document.warnings,
        document=document,
        table=tables(document, "nccl-tests"),
    )


def bench_figures(document: BenchDocument) -> dict[str, go.Figure]:
    """The figures by element id."""
    return {
        "latency": _lines(document, "seconds", 1e6, "time of a call, us"),
        "bandwidth": _lines(document, "busbw_gigabytes_per_second", 1, "busbw, 10^9 bytes a second"),
    }


def _lines(document: BenchDocument, name: str, unit: float, axis: str) -> go.Figure:
    figure = go.Figure()
    names = list(dict.fromkeys(row.backend for row in document.rows))
    for number, backend in enumerate(names):
        rows = [row for row in document.rows if row.backend == backend]
        shown = rows_to_compare(rows)
        others = [row for row in rows if row not in shown]
        figure.add_trace(_line(shown, name, unit, colour(number)))
        if others:
            # In place gives nearly the same line: dashed, and hidden at first.
            figure.add_trace(_line(others, name, unit, colour(number), secondary=True))
    for crossover in document.crossovers:
        figure.add_vline(
            x=crossover.bytes,
            line={"color": GREY, "width": 1, "dash": "dot"},
            annotation={"text": f"{human_bytes(crossover.bytes)}: {crossover.faster_above}", "font_size": 11},
        )
    style(figure, "size", axis, height=420)
    figure.update_layout(margin_t=56, legend_y=1.08)  # above the labels of the crossovers
    sizes = sorted({row.bytes for row in document.rows})
    ticks = sizes[:: max(1, len(sizes) // 10)]
    figure.update_xaxes(
        type="log" if sizes[0] > 0 else "linear",
        tickvals=ticks,
        ticktext=[human_bytes(size) for size in ticks],
    )
    zero = any(getattr(row, name) <= 0 for row in document.rows)
    # Each power of ten; other labels between them would overlap.
    figure.update_yaxes(**({"type": "linear"} if zero else {"type": "log", "dtick": 1}))
    return figure


def _line(rows: list[BenchRow], name: str, unit: float, line_colour: str, secondary: bool = False) -> go.Scatter:
    values = [unit * getattr(row, name) for row in rows]
    label = rows[0].backend + (", in place" if rows[0].in_place else "")
    reach = [unit * ((row.seconds_high or row.seconds) - row.seconds) for row in rows] if name == "seconds" else None
    return go.Scatter(
        name=label,
        x=[row.bytes for row in rows],
        y=values,
        mode="lines+markers",
        visible="legendonly" if secondary else True,
        line={"color": line_colour, "width": 2, "dash": "dash" if secondary else "solid"},
        error_y=error_bars(line_colour, reach) if reach else None,
        text=[human_bytes(row.bytes) for row in rows],
        hovertemplate=f"{label}, %{{text}}: %{{y:.4g}}<extra></extra>",
    )
