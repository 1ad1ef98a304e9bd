"""A progress bar over the sizes of all back ends."""

import sys
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from hvscale.bench.collectives.controller import Bench, Start
from hvscale.bench.collectives.request import Measured
from hvscale.core.plain_rich import PlainColumn, PlainConsole
from hvscale.core.units import human_bytes, human_seconds


class SizesShown:
    """On a terminal's stderr: a bar over all sizes of all back ends, with the last figure."""

    def __init__(self, bench: Bench) -> None:
        self.progress = Progress(
            PlainColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=PlainConsole(stderr=True),
            redirect_stdout=False,
            disable=not sys.stderr.isatty(),
        )
        self.task = self.progress.add_task("starting", total=sum(map(bench.measurements, bench.starts)))
        self.name = ""

    def starting(self, start: Start) -> None:
        self.name = start.entry.name
        self.progress.update(self.task, description=self.name)

    def measured(self, measured: Measured) -> None:
        took = human_seconds(sum(measured.seconds) / len(measured.seconds))
        self.progress.update(self.task, description=f"{self.name} {human_bytes(measured.bytes)}: {took}", advance=1)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
