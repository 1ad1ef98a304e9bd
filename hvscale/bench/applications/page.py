"""The page of `hvscale bench app`: box plots, speed-ups, bandwidths."""

import plotly.graph_objects as go

from hvscale.bench.applications import APPLICATIONS
from hvscale.bench.applications.document import ApplicationDocument, valid_runs
from hvscale.bench.applications.output import NO_FLAGS, sizes, tables
from hvscale.report.figures import colour, dash, linear, style
from hvscale.report.page import study_page


def page(document: ApplicationDocument) -> str:
    """The page of a document with at least one row or ping."""
    library = document.library
    return study_page(
        document,
        what=f"{document.application}: {APPLICATIONS.get(document.application).summary}",
        facts=[
            sizes(document),
            document.compiler.version,
            *([f"{library.flavour} {library.version}"] if library is not None else []),
        ],
        tables=tables(document),
        figures=network_figures(document) if document.pings else time_figures(document),
    )


def time_figures(document: ApplicationDocument) -> dict[str, tuple[str, go.Figure]]:
    """Box plots for each np and the speed-ups: (heading, figure) by element id."""
    ranks = sorted({row.np for row in document.rows})
    shown = {f"np-{np}": (f"np {np}: seconds", boxes(document, np)) for np in ranks}
    if len(ranks) > 1 and any(row.speed_up is not None for row in document.rows):
        shown["speed-up"] = (f"Speed-up over np {document.base_np}", speed_ups(document))
    return shown


def boxes(document: ApplicationDocument, np: int) -> go.Figure:
    """Box plots with the table's quartiles: flags side by side, a colour for each placement."""
    figure = go.Figure()
    for number, placement in enumerate(document.placements):
        rows = [row for row in document.rows if row.np == np and row.placement == placement]
        figure.add_box(
            name=placement,
            x=[row.flags or NO_FLAGS for row in rows],
            q1=[row.quartile_low_seconds for row in rows],
            median=[row.median_seconds for row in rows],
            q3=[row.quartile_high_seconds for row in rows],
            lowerfence=[row.whisker_low_seconds for row in rows],
            upperfence=[row.whisker_high_seconds for row in rows],
            y=[[run.seconds for run in valid_runs(document.runs, row.variant)] for row in rows],
            boxpoints="outliers",
            marker_color=colour(number),
            line_width=1.5,
        )
    figure.update_layout(boxmode="group")
    style(figure, "", "seconds")
    return figure


def speed_ups(document: ApplicationDocument) -> go.Figure:
    """A line for each build and placement: a colour for each placement, a dash for each build."""
    figure = go.Figure()
    ranks = sorted({row.np for row in document.rows})
    # With a master np = workers + 1, and linear speed-up refers to the workers.
    masters = document.base_np - 1
    figure.add_trace(linear(ranks, [np - masters for np in ranks]))
    for place_number, placement in enumerate(document.placements):
        for flags_number, flags in enumerate(document.flags):
            rows = [row for row in document.rows if (row.placement, row.flags) == (placement, flags)]
            figure.add_scatter(
                name=f"{placement}, {flags or NO_FLAGS}",
                x=[row.np for row in rows],
                y=[row.speed_up for row in rows],
                mode="lines+markers",
                line={
                    "color": colour(place_number),
                    "dash": dash(flags_number),
                    "width": 2,
                },
                hovertemplate="np %{x}: %{y:.3g}",
            )
    style(figure, "np", "speed-up")
    figure.update_xaxes(tickvals=ranks)
    figure.update_yaxes(rangemode="tozero")
    return figure


def network_figures(document: ApplicationDocument) -> dict[str, tuple[str, go.Figure]]:
    """Bandwidth over message size, a line for each variant."""
    figure = go.Figure()
    for number, variant in enumerate(dict.fromkeys(row.variant for row in document.bandwidth)):
        rows = [row for row in document.bandwidth if row.variant == variant]
        figure.add_scatter(
            name=str(variant),
            x=[row.bytes for row in rows],
            y=[row.median_gigabytes_per_second for row in rows],
            mode="lines+markers",
            line={"color": colour(number), "width": 2},
            hovertemplate="%{x} bytes: %{y:.3g} GB/s",
        )
    style(figure, "bytes", "10^9 bytes a second, median pair")
    sizes_shown = sorted({row.bytes for row in document.bandwidth})[::2]
    figure.update_xaxes(type="log", tickvals=sizes_shown, ticktext=[f"{size}" for size in sizes_shown])
    figure.update_yaxes(type="log")
    return {"bandwidth": ("Bandwidth of a pair while all pairs send", figure)}
