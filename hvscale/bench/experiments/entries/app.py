"""Measurements with `hvscale bench app`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from hvscale.bench.applications.document import ApplicationVariant, network_results, seconds_of
from hvscale.bench.applications.study import ApplicationStudy
from hvscale.bench.experiments.entries import Entry, InterleavedMeasurement, LaunchContext, comma_list, register
from hvscale.bench.experiments.series import Series


@register
class ApplicationEntry(Entry):
    """The options of the command, with the same names."""

    measure: Literal["app"]
    program: str
    flags: Annotated[list[str], Field(min_length=1)]
    np: Annotated[list[PositiveInt], Field(min_length=1)]
    size: Annotated[dict[str, int], Field(default_factory=dict)]
    counters: bool = True
    repeat: PositiveInt = 10

    def measurement(self, path: Path, launch: LaunchContext) -> "AppMeasurement":
        study = ApplicationStudy.of(
            self.program,
            flags=self.flags,
            ranks=comma_list(self.np),
            repeats=self.repeat,
            size=[f"{name}={value}" for name, value in self.size.items()],
            count=self.counters,
            path=path,
            options=launch.resolve([], launch.options),
        )
        return AppMeasurement(study)


class AppMeasurement(InterleavedMeasurement[ApplicationStudy]):
    def series(self) -> list[Series]:
        """Seconds of the program; for the program `network` its median ping."""
        document = self.study.document
        found = []
        for variant in document.variants():
            seconds = seconds_of(document.runs, variant) if self.study.application.is_timed else self.pings(variant)
            if seconds:
                found.append(Series({"program": document.application, **dict(variant)}, seconds, "median"))  # type: ignore[dict-item]
        return found

    def pings(self, variant: ApplicationVariant) -> dict[int, float]:
        return {
            run.repeat: result.ping_seconds.median
            for run in self.study.document.runs
            for result in network_results([run], variant)
        }
