"""A measurement of a program as one HTML page that needs no network: box plots, speed-ups, bandwidths."""

from pathlib import Path

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hvscale import __version__
from hvscale.bench.applications import get
from hvscale.bench.applications.document import ApplicationDocument, counting
from hvscale.bench.applications.output import NO_FLAGS, sizes, tables
from hvscale.profiling.report_figures import GREY, INK, OPERATION_COLOURS, RULE, script_safe

TEMPLATES = Path(__file__).parent / "templates"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def page(document: ApplicationDocument) -> str:
    """Tables and figures. `document` holds a row at least, or a ping."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    figures = network_figures(document) if document.pings else time_figures(document)
    return environment.get_template("bench-app.html.j2").render(
        document=document,
        title=Path(document.folder).name,
        summary=get(document.application).summary,
        sizes=sizes(document),
        tables=tables(document),
        headings={name: heading for name, (heading, _) in figures.items()},
        figures=Markup(script_safe({name: figure for name, (_, figure) in figures.items()})),  # noqa: S704 - made safe there
        plotly=Markup(get_plotlyjs()),  # noqa: S704 - Plotly's own file
        version=__version__,
    )


def time_figures(document: ApplicationDocument) -> dict[str, tuple[str, go.Figure]]:
    """Box plots for each np and the speed-ups, with their headings, by the id of the page's element."""
    ranks = sorted({row.np for row in document.rows})
    shown = {f"np-{np}": (f"np {np}: seconds", boxes(document, np)) for np in ranks}
    if len(ranks) > 1 and any(row.speed_up is not None for row in document.rows):
        shown["speed-up"] = (f"Speed-up over np {document.base_np}", speed_ups(document))
    return shown


def boxes(document: ApplicationDocument, np: int) -> go.Figure:
    """Flags side by side, a colour for each placement; the quartiles are those of the table."""
    figure = go.Figure()
    for number, placement in enumerate(document.placements):
        rows = [row for row in document.rows if row.np == np and row.placement == placement]
        colour = OPERATION_COLOURS[number % len(OPERATION_COLOURS)]
        figure.add_box(
            name=placement,
            x=[row.flags or NO_FLAGS for row in rows],
            q1=[row.quartile_low_seconds for row in rows],
            median=[row.median_seconds for row in rows],
            q3=[row.quartile_high_seconds for row in rows],
            lowerfence=[row.whisker_low_seconds for row in rows],
            upperfence=[row.whisker_high_seconds for row in rows],
            y=[[run.seconds for run in counting(document.runs, row.variant)] for row in rows],
            boxpoints="outliers",
            marker_color=colour,
            line_width=1.5,
        )
    figure.update_layout(boxmode="group")
    style(figure, "", "seconds")
    return figure


def speed_ups(document: ApplicationDocument) -> go.Figure:
    """A line for each build and place: colours for the places, dashes for the flags."""
    figure = go.Figure()
    ranks = sorted({row.np for row in document.rows})
    # np = slaves + 1 where one rank is the master: linear is in the slaves.
    not_working = document.base_np - 1
    figure.add_scatter(
        name="linear",
        x=ranks,
        y=[np - not_working for np in ranks],
        mode="lines",
        line={"color": GREY, "width": 1.5, "dash": "dash"},
        hoverinfo="skip",
    )
    for place_number, placement in enumerate(document.placements):
        for flags_number, flags in enumerate(document.flags):
            rows = [row for row in document.rows if (row.placement, row.flags) == (placement, flags)]
            figure.add_scatter(
                name=f"{placement}, {flags or NO_FLAGS}",
                x=[row.np for row in rows],
                y=[row.speed_up for row in rows],
                mode="lines+markers",
                line={
                    "color": OPERATION_COLOURS[place_number % len(OPERATION_COLOURS)],
                    "dash": DASHES[flags_number % len(DASHES)],
                    "width": 2,
                },
                hovertemplate="np %{x}: %{y:.3g}",
            )
    style(figure, "np", "speed-up")
    figure.update_xaxes(tickvals=ranks)
    figure.update_yaxes(rangemode="tozero")
    return figure


def network_figures(document: ApplicationDocument) -> dict[str, tuple[str, go.Figure]]:
    """Bandwidth over the message's size, a line for each variant."""
    figure = go.Figure()
    for number, variant in enumerate(dict.fromkeys(row.variant for row in document.bandwidth)):
        rows = [row for row in document.bandwidth if row.variant == variant]
        figure.add_scatter(
            name=str(variant),
            x=[row.bytes for row in rows],
            y=[row.median_gigabytes_per_second for row in rows],
            mode="lines+markers",
            line={"color": OPERATION_COLOURS[number % len(OPERATION_COLOURS)], "width": 2},
            hovertemplate="%{x} bytes: %{y:.3g} GB/s",
        )
    style(figure, "bytes", "10^9 bytes a second, median pair")
    sizes_shown = sorted({row.bytes for row in document.bandwidth})[::2]
    figure.update_xaxes(type="log", tickvals=sizes_shown, ticktext=[f"{size}" for size in sizes_shown])
    figure.update_yaxes(type="log")
    return {"bandwidth": ("Bandwidth of a pair while all pairs send", figure)}


def style(figure: go.Figure, x_axis: str, y_axis: str) -> None:
    figure.update_layout(
        template="none",
        height=340,
        margin={"l": 8, "r": 16, "t": 40, "b": 48},
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
        hoverlabel={"bgcolor": "white", "font_color": INK},
    )
    figure.update_xaxes(title={"text": x_axis, "font_size": 13}, gridcolor=RULE, automargin=True)
    figure.update_yaxes(title={"text": y_axis, "font_size": 13}, gridcolor=RULE, automargin=True)
