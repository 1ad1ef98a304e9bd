"""A replay beside its recording, as a table for the terminal."""

from pathlib import Path

from rich.table import Table

from hvscale.core.units import human_number, human_range, human_seconds
from hvscale.prediction.replay.comparison import FusedMessageRow, ReplayDocument
from hvscale.prediction.replay.schedule import steps_in_words
from hvscale.report.csv_file import write_csv
from hvscale.report.tables import plain_table


def replay_table(document: ReplayDocument) -> Table:
    """Steps, exposed communication and fused messages. About 60 columns wide."""
    before, after = document.recorded, document.replayed
    caption = "times: of rank 0; exposed: waiting in synchronize(); messages: per rank and step"
    if document.differences:
        caption += "\nnot the recorded job (recorded against replayed): " + "; ".join(document.differences)
    result = plain_table(
        f"{Path(document.recorded_run).name}: np {document.np}, {steps_in_words(document.steps)}, --compute {document.compute}",
        caption,
        *("", "recorded", "replayed", "change %"),
    )
    times = {
        "step, mean": (before.mean_seconds, after.mean_seconds),
        "step, median": (before.median_seconds, after.median_seconds),
        "exposed communication, mean": (before.exposed_seconds, after.exposed_seconds),
    }
    for name, (recorded, replayed) in times.items():
        result.add_row(name, human_seconds(recorded), human_seconds(replayed), _change(recorded, replayed))
    result.add_row(
        "fused messages",
        *(human_number(side.messages) for side in (before, after)),
        _change(before.messages, after.messages),
    )
    for row in document.sizes:
        size = human_range(row.bytes_min, row.bytes_max)
        result.add_row(f"  {size}", human_number(row.recorded), human_number(row.replayed))
    return result


def write_replay_csv(document: ReplayDocument, path: Path) -> None:
    """Write `sizes` of the JSON document. Raises RequestError if `path` cannot be written."""
    write_csv(path, document.sizes, list(FusedMessageRow.model_fields))


def _change(recorded: float | None, replayed: float | None) -> str:
    if not recorded or replayed is None:
        return "-"
    return f"{100 * (replayed / recorded - 1):+.1f}"
