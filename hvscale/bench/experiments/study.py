"""Repeats a published study: makes the measurements of its file in a resumable folder, then tests
its claims on all of them.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from hvscale.bench.experiments import experiment_file
from hvscale.bench.experiments.document import ExperimentDocument, MeasurementRecord, StatementRow
from hvscale.bench.experiments.entries import Entry, Launching, Measurement, by
from hvscale.bench.experiments.experiment_file import PARTS, Experiment
from hvscale.bench.experiments.series import Series
from hvscale.core.errors import HvscaleError, RequestError
from hvscale.core.run_folder import default_run_path
from hvscale.core.suggest import check_choice
from hvscale.launch.controller import RunInterruptedError
from hvscale.studies.base import Study, Warn
from hvscale.studies.interleaved import ProgressReporter


@dataclass(frozen=True)
class NamedProgress:
    """Reports the runs of one measurement, with its name before each."""

    name: str
    progress: ProgressReporter

    def starting(self, what: str, repeat: int) -> None:
        self.progress.starting(f"{self.name}: {what}", repeat)

    def measured(self, what: str, repeat: int, value: float | None, unit: str | None) -> None:
        self.progress.measured(f"{self.name}: {what}", repeat, value, unit)


class ExperimentStudy(Study[ExperimentDocument]):
    """One experiment. Its document is written after every measurement."""

    verb = "bench experiment"
    same = ("title", "part", "collectives")  # each measurement checks its own folder
    started = "*/*/"

    def __init__(self, experiment: Experiment, document: ExperimentDocument, measurements: list[Measurement]) -> None:
        super().__init__(document)
        self.experiment, self.measurements = experiment, measurements

    @classmethod
    def of(cls, toml: Path, part: str, launch: Launching, path: Path | None) -> Self:
        """`launch`: for all entries; a --placement takes the place of theirs.

        Raises RequestError for what cannot be measured, naming the entry; writes nothing.
        """
        experiment = experiment_file.read(toml)
        check_choice("--part", part, PARTS)
        entries = experiment.part(part)
        if not entries:
            raise RequestError(f"{toml}: its part {part} has no measurements")
        folder = (path or default_run_path(["bench-experiment", toml.absolute().parent.name])).absolute()
        table = launch.options.collectives
        check_table(f"{toml}, part {part}", entries, table)
        measurements = []
        for name, entry in entries.items():
            places, placement = entry.placed(launch.options.placement)
            own = entry.model_copy(update={"placement": places})
            placed = launch.options.replace(placement=placement)
            asked = replace(launch, options=by("table" if entry.wants_table else "library", placed))
            try:
                measurements.append(own.measurement(folder / name, asked))
            except RequestError as error:
                raise RequestError(f"{part}.{name}: {error}") from error
        records = [MeasurementRecord(name=name, measure=entry.measure, folder=name) for name, entry in entries.items()]
        document = ExperimentDocument(
            folder=str(folder),
            title=experiment.title,
            part=part,
            collectives=table.read_text() if table is not None else None,
            measurements=records,
        )
        return cls(experiment, document, measurements)

    def measure(self, reporter: Callable[[int, int], AbstractContextManager[ProgressReporter]], warn: Warn) -> None:
        """Make the measurements that the folder does not hold yet. `reporter(starts, repeats)` is
        entered for each.

        After a failure the other measurements are still made; then it is raised, as RankFailedError
        or UntrustedError. RequestError and RunInterruptedError are raised at once. Measurements
        made so far are kept in any case.
        """
        with self.at_work(warn):
            for record, measurement in zip(self.document.measurements, self.measurements, strict=True):
                with reporter(measurement.starts, measurement.repeats) as progress:
                    self.measure_one(record, measurement, progress)

    def measure_one(self, record: MeasurementRecord, measurement: Measurement, progress: ProgressReporter) -> None:
        record.state = "running"
        self.write("running")
        try:
            measurement.measure(
                NamedProgress(record.name, progress), warn=lambda text: self.warn(f"{record.name}: {text}")
            )
        except HvscaleError as error:
            record.state, record.problem = "failed", str(error)
            if isinstance(error, RunInterruptedError):
                record.state = "interrupted"
            if isinstance(error, RunInterruptedError | RequestError):
                raise
            self.failure = self.failure or error
        else:
            record.state = "finished"
        finally:
            self.document.host = self.document.host or measurement.host

    def series(self) -> list[Series]:
        return [one for measurement in self.measurements for one in measurement.series()]

    def tabulate(self) -> None:
        """Test the claims on the measurements so far."""
        series = self.series()
        self.document.statements = [
            StatementRow(
                **dict(statement.find(series)), claim=statement.claim, kind=statement.kind, metric=statement.metric
            )
            for statement in self.experiment.statements
        ]

    def has_figures(self) -> bool:
        return bool(self.series())

    def html(self) -> str:
        from hvscale.bench.experiments.page import page

        return page(self.document)


def check_table(what: str, entries: Mapping[str, Entry], table: Path | None) -> None:
    """Raises RequestError for a decision table that is needed and missing, or given and not
    needed.
    """
    wanting = [name for name, entry in entries.items() if entry.wants_table]
    if wanting and table is None:
        raise RequestError(
            f"{what}: {', '.join(wanting)} needs a decision table: give one with --collectives TABLE; `hvscale tune-collectives` makes it"
        )
    if table is not None and not wanting:
        raise RequestError(
            f"{what}: --collectives {table}: no measurement of this part uses a decision table; leave out --collectives"
        )
