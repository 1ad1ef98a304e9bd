"""A measurement of scaling for people: a table for the terminal, a CSV file, and what is shown while it goes on."""

from pathlib import Path

from rich.table import Table

from hvscale.core.units import human_interval, human_number
from hvscale.report.csv_file import write_csv
from hvscale.report.tables import plain_table
from hvscale.studies.scaling.document import ScalingDocument, ScalingRow

SOURCES = {
    "metric": "what --metric matches",
    "result.json": "the trainer's result.json",
    "steps.jsonl": "steps.jsonl",
    "horovod": "Horovod's img/sec lines",
}


def cells(row: ScalingRow) -> list[str]:
    """np, runs, throughput and its interval, speed-up and its interval, efficiency and its interval in percent."""
    efficiency = (row.scaling_efficiency, row.scaling_efficiency_low, row.scaling_efficiency_high)
    mean, low, high = (None if part is None else 100 * part for part in efficiency)
    return [
        str(row.np),
        str(row.runs),
        human_number(row.throughput, 4),
        human_interval(row.throughput_low, row.throughput_high, 4),
        human_number(row.speed_up),
        human_interval(row.speed_up_low, row.speed_up_high),
        human_number(mean),
        human_interval(low, high),
    ]


def columns(document: ScalingDocument) -> list[str]:
    return ["np", "runs", document.unit or "throughput", "interval", "speed-up", "interval", "efficiency %", "interval"]


def caption(document: ScalingDocument) -> str:
    """What the figures are, and where they come from."""
    sources = dict.fromkeys(SOURCES[run.source] for run in document.runs if run.source)
    return (
        f"throughput of all ranks, from {', '.join(sources)}\n"
        f"speed-up over np {document.base_np}, round by round; intervals: {document.confidence:.0%}, over fresh starts"
    )


def title(document: ScalingDocument) -> str:
    each = "each rank has the same to do" if document.scaling == "weak" else "all ranks together have the same to do"
    return f"{Path(document.folder).name}: {document.scaling} scaling, {each}"


def scaling_table(document: ScalingDocument) -> Table:
    """A row for each np. About 80 columns wide."""
    result = plain_table(title(document), caption(document), *columns(document))
    for row in document.rows:
        result.add_row(*cells(row))
    return result


def write_scaling_csv(document: ScalingDocument, path: Path) -> None:
    """The columns of the JSON document's rows. Raises RequestError when `path` cannot be written."""
    write_csv(path, document.rows)
