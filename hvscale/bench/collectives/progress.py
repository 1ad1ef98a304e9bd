"""The progress bar of `hvscale bench`."""

from rich.progress import MofNCompleteColumn

from hvscale.bench.collectives.controller import BackendStart, CollectiveBench
from hvscale.bench.collectives.request import Measured
from hvscale.core.units import human_bytes, human_seconds
from hvscale.report.progress import ProgressBar


class SizesProgress(ProgressBar):
    """A bar over the sizes of all back ends, with the last time."""

    def __init__(self, bench: CollectiveBench) -> None:
        super().__init__(sum(map(bench.measurements, bench.starts)), MofNCompleteColumn())
        self.name = ""

    def starting(self, start: BackendStart) -> None:
        self.name = start.entry.name
        self.update(description=self.name)

    def measured(self, measured: Measured) -> None:
        took = human_seconds(sum(measured.seconds) / len(measured.seconds))
        self.update(description=f"{self.name} {human_bytes(measured.bytes)}: {took}", advance=1)
