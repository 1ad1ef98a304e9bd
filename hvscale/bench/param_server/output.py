"""The tables and the page of a parameter exchange."""

import plotly.graph_objects as go

from hvscale.bench.param_server.document import BestAndWorst, ParamServerDocument, ParamServerRow, StepExchange
from hvscale.core.units import WIDEST_INTERVAL, human_bytes, human_seconds, is_narrow
from hvscale.report.figures import colour, dash, error_bars, style
from hvscale.report.page import study_page
from hvscale.report.tables import TableModel


def tables(document: ParamServerDocument) -> list[TableModel]:
    """All tables that are not empty."""
    shown = [latency_table(document)] if document.rows else []
    if document.best_and_worst:
        shown.append(best_and_worst_table(document))
    if document.step_exchanges:
        shown.append(step_exchange_table(document))
    return shown


def what(document: ParamServerDocument) -> str:
    return f"{human_bytes(document.bytes)} of {document.dtype} for each worker in {document.device} memory"


def latency_table(document: ParamServerDocument) -> TableModel:
    """A row for each variant."""
    groups: dict[str, list[list[str]]] = {}
    for row in document.rows:
        cells = [
            str(row.starts),
            human_seconds(row.seconds),
            seconds_interval(row.seconds_low, row.seconds_high),
            human_seconds(row.seconds_min),
            human_seconds(row.seconds_max),
        ]
        groups.setdefault(f"{row.operation}, workers {row.workers}", []).append([variant_name(row), *cells])
    return TableModel(
        title=f"param-server: {what(document)}",
        columns=["", "starts", "mean", "interval", "min", "max"],
        groups=groups,
        caption=[
            "mean: time of a call on the slowest rank",
            f"{document.confidence:.0%} intervals over the starts; for a single start, over its samples",
        ],
    )


def seconds_interval(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "-"
    return f"{human_seconds(low)} to {human_seconds(high)}" if is_narrow(low, high) else f"> factor {WIDEST_INTERVAL}"


def variant_name(row: ParamServerRow | StepExchange) -> str:
    return f"{row.backend}, {row.placement}"


def best_and_worst_table(document: ParamServerDocument) -> TableModel:
    """Two rows for each operation and number of workers, and two over all numbers of workers."""
    groups = {}
    for found in document.best_and_worst:
        workers = "any number of workers" if found.workers is None else f"workers {found.workers}"
        groups[f"{found.operation}, {workers}"] = [
            [f"best: {variant_name(found.best)}", *extreme_cells(found.best), *saved_cells(found)],
            [f"worst: {variant_name(found.worst)}", *extreme_cells(found.worst), "", ""],
        ]
    return TableModel(
        title="best and worst",
        columns=["", "workers", "mean", "saves %", "interval"],
        groups=groups,
        caption=["over the rounds that all variants have", "saves: (1 - best / worst) * 100, round by round"],
    )


def extreme_cells(row: ParamServerRow) -> list[str]:
    return [str(row.workers), human_seconds(row.seconds)]


def step_exchange_table(document: ParamServerDocument) -> TableModel:
    """The time of a training step's exchange with a server and with all-reduce."""
    groups: dict[str, list[list[str]]] = {}
    for row in document.step_exchanges:
        cells = [human_seconds(row.server_seconds), human_seconds(row.allreduce_seconds), *saved_cells(row)]
        groups.setdefault(f"workers {row.workers}", []).append([variant_name(row), *cells])
    return TableModel(
        title="exchange of a step: broadcast and gather with a server, or all-reduce",
        columns=["", "server", "all-reduce", "saves %", "interval"],
        groups=groups,
        caption=[
            "over the rounds that all three operations have",
            "saves: (1 - all-reduce / server) * 100, round by round",
        ],
    )


def saved_cells(row: BestAndWorst | StepExchange) -> list[str]:
    """The saving and its interval; `-` for a single round."""
    percent, low, high = row.saved_percent, row.saved_percent_low, row.saved_percent_high
    if percent is None:
        return ["-", "-"]
    if low is None or high is None:
        return [f"{percent:.1f}", "-"]
    interval = f"{low:.1f} to {high:.1f}" if is_narrow(1 - high / 100, 1 - low / 100) else f"> factor {WIDEST_INTERVAL}"
    return ["no difference" if low <= 0 <= high else f"{percent:.1f}", interval]


def page(document: ParamServerDocument) -> str:
    """The page of `hvscale bench param-server`, for a document with at least one row."""
    measured = {row.operation for row in document.rows}
    return study_page(
        document,
        what=f"Parameter server and all-reduce: {what(document)}",
        facts=[f"{name}: {library}" for name, library in document.libraries.items()],
        tables=tables(document),
        figures={
            operation: (f"{operation}: seconds", lines(document, operation))
            for operation in document.operations
            if operation in measured
        },
    )


def error_bar_lengths(row: ParamServerRow) -> tuple[float, float]:
    """Above and below the mean; 0 without an interval that is narrow enough to be useful."""
    low, high = row.seconds_low, row.seconds_high
    if low is None or high is None or not is_narrow(low, high):
        return 0, 0
    return high - row.seconds, row.seconds - low


def lines(document: ParamServerDocument, operation: str) -> go.Figure:
    """Seconds over the number of workers: a colour for each library, a dash for each placement."""
    figure = go.Figure()
    for backend_number, backend in enumerate(document.backends):
        for place_number, placement in enumerate(document.placements):
            variant = (operation, backend, placement)
            rows = [row for row in document.rows if (row.operation, row.backend, row.placement) == variant]
            lengths = [error_bar_lengths(row) for row in rows]
            figure.add_scatter(
                name=f"{backend}, {placement}",
                x=[row.workers for row in rows],
                y=[row.seconds for row in rows],
                error_y=error_bars(
                    colour(backend_number), [above for above, _ in lengths], [below for _, below in lengths]
                ),
                mode="lines+markers",
                line={"color": colour(backend_number), "dash": dash(place_number), "width": 2},
                hovertemplate="workers %{x}: %{y:.4g} s",
            )
    style(figure, "workers", "seconds")
    figure.update_xaxes(tickvals=document.workers)
    figure.update_yaxes(rangemode="tozero")
    return figure
