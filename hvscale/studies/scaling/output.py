"""A measurement of scaling for people: a table for the terminal, a CSV file, and what is shown while it goes on."""

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from hvscale.core.plain_rich import PlainColumn, PlainConsole
from hvscale.core.terminal import printable
from hvscale.report.tables import plain_table, write_rows
from hvscale.studies.scaling.document import ScalingDocument, ScalingRow

SOURCES = {
    "metric": "what --metric matches",
    "result.json": "the trainer's result.json",
    "steps.jsonl": "steps.jsonl",
    "horovod": "Horovod's img/sec lines",
}


WIDEST = 100  # factor between the ends of an interval that is worth its place


def human(value: float | None, digits: int = 3) -> str:
    """As a table shows it: 0.963, 98.2, 1234, 5.34e+09."""
    if value is None:
        return "-"
    if not 1e-3 <= value < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.0f}" if value >= 10**digits else f"{value:#.{digits}g}".rstrip(".")


def is_known(low: float | None, high: float | None) -> bool:
    """Whether an interval says anything: that of two noisy runs can span many powers of ten."""
    return low is not None and high is not None and high <= WIDEST * low


def human_interval(low: float | None, high: float | None, digits: int = 3) -> str:
    if low is None or high is None:
        return "-"
    return f"{human(low, digits)} to {human(high, digits)}" if is_known(low, high) else f"> factor {WIDEST}"


def cells(row: ScalingRow) -> list[str]:
    """np, runs, throughput and its interval, speed-up and its interval, efficiency and its interval in percent."""
    efficiency = (row.scaling_efficiency, row.scaling_efficiency_low, row.scaling_efficiency_high)
    mean, low, high = (None if part is None else 100 * part for part in efficiency)
    return [
        str(row.np),
        str(row.runs),
        human(row.throughput, 4),
        human_interval(row.throughput_low, row.throughput_high, 4),
        human(row.speed_up),
        human_interval(row.speed_up_low, row.speed_up_high),
        human(mean),
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
    write_rows(path, list(ScalingRow.model_fields), document.rows)


class RunsShown:
    """On stderr: a line for each run, and on a terminal a bar over all of them."""

    def __init__(self, variants: int, repeats: int) -> None:
        self.repeats = repeats
        self.progress = Progress(
            PlainColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=PlainConsole(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self.task = self.progress.add_task("starting", total=variants * repeats)

    def starting(self, what: str, repeat: int) -> None:
        self.progress.update(self.task, description=f"{what}, repeat {repeat} of {self.repeats}")

    def measured(self, what: str, repeat: int, value: float | None, unit: str | None) -> None:
        """`value`: None where the run failed."""
        self.progress.advance(self.task)
        if value is not None:
            figure = f"{human(value, 4)} {unit or ''}".rstrip()
            said = f"{what}, repeat {repeat} of {self.repeats}: {figure}"
            print(printable(said, sys.stderr), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
