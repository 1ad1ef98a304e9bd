"""The table of a scaling study, and its CSV file."""

from pathlib import Path

from hvscale.core.units import human_interval, human_number
from hvscale.report.csv_file import write_csv
from hvscale.report.tables import TableModel
from hvscale.studies.scaling.document import ScalingDocument, ScalingRow

SOURCES = {
    "metric": "what --metric matches",
    "result.json": "the trainer's result.json",
    "steps.jsonl": "steps.jsonl",
    "horovod": "Horovod's img/sec lines",
}


def cells(row: ScalingRow) -> list[str]:
    """np, runs, throughput and its interval, speed-up and its interval, efficiency and its interval
    in percent.
    """
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


def table(document: ScalingDocument) -> TableModel:
    """A row for each np."""
    unit = document.unit or "throughput"
    each = "each rank has the same work" if document.scaling == "weak" else "all ranks together have the same work"
    sources = dict.fromkeys(SOURCES[run.source] for run in document.runs if run.source)
    return TableModel(
        title=f"{Path(document.folder).name}: {document.scaling} scaling, {each}",
        columns=["np", "runs", unit, "interval", "speed-up", "interval", "efficiency %", "interval"],
        groups={"": [cells(row) for row in document.rows]},
        caption=[
            f"throughput of all ranks, from {', '.join(sources)}",
            f"speed-up over np {document.base_np}, round by round; intervals: {document.confidence:.0%}, over fresh starts",
        ],
    )


def write_scaling_csv(document: ScalingDocument, path: Path) -> None:
    """The columns of the JSON document's rows. Raises RequestError when `path` cannot be
    written.
    """
    write_csv(path, document.rows)
