"""Repeats a published study: makes the measurements of its file in a resumable folder, then tests
its claims.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from hvscale.bench.experiments import experiment_file
from hvscale.bench.experiments.document import ExperimentDocument, MeasurementRecord, StatementRow
from hvscale.bench.experiments.entries import Entry, LaunchContext, Measurement, with_collectives
from hvscale.bench.experiments.experiment_file import PARTS, Experiment
from hvscale.bench.experiments.series import Series
from hvscale.core.errors import HvscaleError, RequestError
from hvscale.core.run_folder import default_run_path
from hvscale.core.suggest import check_choice
from hvscale.launch.controller import RunInterruptedError
from hvscale.report.tables import TableModel
from hvscale.studies.base import Study, Warn
from hvscale.studies.interleaved import ProgressReporter


@dataclass(frozen=True)
class NamedProgress:
    """Reports the runs of one measurement, each with the measurement's name."""

    name: str
    progress: ProgressReporter

    def starting(self, what: str, repeat: int) -> None:
        self.progress.starting(f"{self.name}: {what}", repeat)

    def measured(self, what: str, repeat: int, value: float | None, unit: str | None) -> None:
        self.progress.measured(f"{self.name}: {what}", repeat, value, unit)


class ExperimentStudy(Study[ExperimentDocument]):
    """One experiment. Its document is written after each measurement."""

    verb = "bench experiment"
    must_match = ("title", "part", "collectives")  # each measurement checks its folder
    run_folders = "*/*/"

    def __init__(self, experiment: Experiment, document: ExperimentDocument, measurements: list[Measurement]) -> None:
        super().__init__(document)
        self.experiment, self.measurements = experiment, measurements

    @classmethod
    def of(cls, toml: Path, part: str, launch: LaunchContext, path: Path | None) -> Self:
        """`launch`: for all entries; its placement, if given, replaces theirs.

        Raises RequestError, naming the entry, for an invalid request. Writes nothing.
        """
        experiment = experiment_file.read(toml)
        check_choice("--part", part, PARTS)
        entries = experiment.part(part)
        if not entries:
            raise RequestError(f"{toml}: part {part} has no measurements")
        folder = (path or default_run_path(["bench-experiment", toml.absolute().parent.name])).absolute()
        table = launch.options.collectives
        check_table(f"{toml}, part {part}", entries, table)
        measurements = []
        for name, entry in entries.items():
            names, placement = entry.resolve_placement(launch.options.placement)
            placed = launch.options.replace(placement=placement)
            options = with_collectives("table" if entry.needs_table else "library", placed)
            placed_entry = entry.model_copy(update={"placement": names})
            try:
                entry.check_part(entries)
                measurements.append(placed_entry.measurement(folder / name, replace(launch, options=options)))
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

    def resume(self, previous: ExperimentDocument) -> None:
        """Take over the results of all measurements before anything is written or started."""
        self.document.host = previous.host
        before = {record.name: record for record in previous.measurements}
        for record, measurement in zip(self.document.measurements, self.measurements, strict=True):
            measurement.resume(self.warn_of(record))
            take_over_state(record, before.get(record.name), measurement.is_complete)

    def measure(self, reporter: Callable[[int, int], AbstractContextManager[ProgressReporter]], warn: Warn) -> None:
        """Make the measurements that are not in the folder yet. `reporter(starts, repeats)` is
        entered for each.

        If a measurement fails, the others are still made, then its RankFailedError or
        UntrustedError is raised. RequestError and RunInterruptedError are raised at once. All
        results are kept.
        """
        with self.opened(warn):
            for record, measurement in zip(self.document.measurements, self.measurements, strict=True):
                with reporter(measurement.starts, measurement.repeats) as progress:
                    self.measure_one(record, measurement, progress)

    def measure_one(self, record: MeasurementRecord, measurement: Measurement, progress: ProgressReporter) -> None:
        record.state, record.problem = "running", None
        self.write("running")
        try:
            measurement.measure(NamedProgress(record.name, progress), warn=self.warn_of(record))
        except HvscaleError as error:
            record.state, record.problem = "failed", str(error)
            if isinstance(error, RunInterruptedError):
                record.state = "interrupted"
            if isinstance(error, RunInterruptedError | RequestError):
                raise
            self.failure = self.failure or error
        except BaseException:  # Ctrl-C between two starts, such as while a program is built
            record.state = "interrupted"
            raise
        else:
            record.state = "finished"
        finally:
            self.document.host = self.document.host or measurement.host

    def warn_of(self, record: MeasurementRecord) -> Warn:
        """Warns with the measurement's name."""
        return lambda text: self.warn(f"{record.name}: {text}")

    def series(self) -> list[Series]:
        return [one for measurement in self.measurements for one in measurement.series()]

    def tables(self) -> list[TableModel]:
        return [one for measurement in self.measurements for one in measurement.tables()]

    def tabulate(self) -> None:
        """Test the claims on the results so far."""
        series = self.series()
        unavailable = [one for measurement in self.measurements for one in measurement.unavailable()]
        self.document.statements = [
            StatementRow(
                **dict(statement.test(series, unavailable)),
                claim=statement.claim,
                kind=statement.kind,
                metric=statement.metric,
            )
            for statement in self.experiment.statements
        ]

    def has_figures(self) -> bool:
        return bool(self.series())

    def html(self) -> str:
        from hvscale.bench.experiments.output import page

        return page(self.document, self.tables(), self.series())


def take_over_state(record: MeasurementRecord, before: MeasurementRecord | None, is_complete: bool) -> None:
    """Set the state of a measurement of an earlier call, which a page shows until its turn.

    `before`: its record there. A finished one may have to be repeated more often now.
    """
    if before is not None and before.state == "failed":
        record.state, record.problem = "failed", before.problem
    elif is_complete:
        record.state = "finished"
    elif before is not None and before.state in ("interrupted", "running"):  # a killed call left it running
        record.state, record.problem = "interrupted", before.problem


def check_table(what: str, entries: Mapping[str, Entry], table: Path | None) -> None:
    """Raises RequestError if a decision table is missing, or given but not used."""
    needing = [name for name, entry in entries.items() if entry.needs_table]
    if needing and table is None:
        raise RequestError(
            f"{what}: {', '.join(needing)} needs a decision table: give one with --collectives TABLE; `hvscale tune-collectives` makes it"
        )
    if table is not None and not needing:
        raise RequestError(
            f"{what}: --collectives {table}: no measurement of this part uses a decision table; leave out --collectives"
        )
