"""The tables of a parameter exchange, for the terminal and the page."""

from hvscale.bench.param_server.document import Exchange, Extremes, ServerDocument, ServerRow
from hvscale.core.units import WIDEST_INTERVAL, human_bytes, human_seconds, is_narrow
from hvscale.report.tables import TableModel


def tables(document: ServerDocument) -> list[TableModel]:
    """All tables that are not empty."""
    shown = [latencies(document)] if document.rows else []
    if document.extremes:
        shown.append(best_and_worst(document))
    if document.exchanges:
        shown.append(exchanges(document))
    return shown


def what(document: ServerDocument) -> str:
    return f"{human_bytes(document.bytes)} of {document.dtype} for each worker in {document.device} memory"


def latencies(document: ServerDocument) -> TableModel:
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
        groups.setdefault(f"{row.operation}, workers {row.workers}", []).append([place(row), *cells])
    return TableModel(
        title=f"param-server: {what(document)}",
        columns=["", "starts", "mean", "interval", "min", "max"],
        groups=groups,
        caption=[
            "time of a call on the slowest rank",
            f"{document.confidence:.0%} intervals over the means of the starts; for a single start over its samples",
        ],
    )


def seconds_interval(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "-"
    return f"{human_seconds(low)} to {human_seconds(high)}" if is_narrow(low, high) else f"> factor {WIDEST_INTERVAL}"


def place(row: ServerRow | Exchange) -> str:
    return f"{row.backend}, {row.placement}"


def best_and_worst(document: ServerDocument) -> TableModel:
    """Two rows for each operation and number of workers, and for all numbers of workers
    together.
    """
    groups = {}
    for found in document.extremes:
        workers = "any number of workers" if found.workers is None else f"workers {found.workers}"
        groups[f"{found.operation}, {workers}"] = [
            [f"best: {place(found.best)}", *extreme_cells(found.best), *saved_cells(found)],
            [f"worst: {place(found.worst)}", *extreme_cells(found.worst), "", ""],
        ]
    return TableModel(
        title="best and worst",
        columns=["", "workers", "mean", "saves %", "interval"],
        groups=groups,
        caption=["saves: (1 - best / worst) * 100, round by round"],
    )


def extreme_cells(row: ServerRow) -> list[str]:
    return [str(row.workers), human_seconds(row.seconds)]


def exchanges(document: ServerDocument) -> TableModel:
    """The time of a step's exchange with a server and with all-reduce."""
    groups: dict[str, list[list[str]]] = {}
    for row in document.exchanges:
        cells = [human_seconds(row.server_seconds), human_seconds(row.allreduce_seconds), *saved_cells(row)]
        groups.setdefault(f"workers {row.workers}", []).append([place(row), *cells])
    return TableModel(
        title="exchange of a step: broadcast and gather with a server, or all-reduce",
        columns=["", "server", "all-reduce", "saves %", "interval"],
        groups=groups,
        caption=["saves: (1 - all-reduce / server) * 100, round by round"],
    )


def saved_cells(row: Extremes | Exchange) -> list[str]:
    """The saving and its interval, which a single round does not give."""
    percent, low, high = row.saved_percent, row.saved_percent_low, row.saved_percent_high
    if percent is None:
        return ["-", "-"]
    if low is None or high is None:
        return [f"{percent:.1f}", "-"]
    interval = f"{low:.1f} to {high:.1f}" if is_narrow(1 - high / 100, 1 - low / 100) else f"> factor {WIDEST_INTERVAL}"
    return ["no difference" if low <= 0 <= high else f"{percent:.1f}", interval]
