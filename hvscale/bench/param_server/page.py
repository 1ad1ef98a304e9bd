"""The page of `hvscale bench param-server`: latency over the number of workers, a line for each
library and place.
"""

import plotly.graph_objects as go

from hvscale.bench.param_server.document import ServerDocument
from hvscale.bench.param_server.output import tables, what
from hvscale.report.figures import colour, dash, error_bars, style
from hvscale.report.page import study_page


def page(document: ServerDocument) -> str:
    """`document` holds a row at least."""
    measured = {row.operation for row in document.rows}
    return study_page(
        document,
        what=f"Parameters by a server and by all-reduce: {what(document)}",
        facts=[f"{name}: {library}" for name, library in document.libraries.items()],
        tables=tables(document),
        figures={
            operation: (f"{operation}: seconds", lines(document, operation))
            for operation in document.operations
            if operation in measured
        },
    )


def lines(document: ServerDocument, operation: str) -> go.Figure:
    """Colours for the libraries, dashes for the placements, intervals as bars."""
    figure = go.Figure()
    for number, backend in enumerate(document.backends):
        for place_number, placement in enumerate(document.placements):
            asked = (operation, backend, placement)
            rows = [row for row in document.rows if (row.operation, row.backend, row.placement) == asked]
            figure.add_scatter(
                name=f"{backend}, {placement}",
                x=[row.workers for row in rows],
                y=[row.seconds for row in rows],
                error_y=error_bars(colour(number), [(row.seconds_high or row.seconds) - row.seconds for row in rows]),
                mode="lines+markers",
                line={"color": colour(number), "dash": dash(place_number), "width": 2},
                hovertemplate="workers %{x}: %{y:.4g} s",
            )
    style(figure, "workers", "seconds")
    figure.update_xaxes(tickvals=document.workers)
    figure.update_yaxes(rangemode="tozero")
    return figure
