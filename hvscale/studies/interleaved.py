"""A study that runs each of several variants once per round: A B C, A B C, ..."""

from abc import abstractmethod
from collections.abc import Collection
from typing import Generic, Protocol, TypeVar

from hvscale.core.errors import HvscaleError, RankFailedError, RequestError
from hvscale.core.run_folder import Host, RunFolder
from hvscale.launch.controller import RunInterruptedError
from hvscale.launch.mpi.reported_library import require_requested_library
from hvscale.studies.base import (
    Period,
    Study,
    Warn,
    finished_or_new_run,
    long_pauses,
    other_library,
    other_machine,
)
from hvscale.studies.document import InterleavedDocument


class ProgressReporter(Protocol):
    """Receives each run; `report.progress.RunProgress` shows it on a terminal."""

    def starting(self, what: str, repeat: int) -> None: ...

    def measured(self, what: str, repeat: int, value: float | None, unit: str | None) -> None:
        """`value`: None if the run failed."""


class VariantRun(Protocol):
    """One run in the document. `problem`: why it does not count."""

    problem: str | None


Document = TypeVar("Document", bound=InterleavedDocument)
Variant = TypeVar("Variant")  # hashable
Run = TypeVar("Run", bound=VariantRun)


class InterleavedStudy(Study[Document], Generic[Document, Variant, Run]):
    """A study that runs each of `variants` once per round, except those in `failed`."""

    failure_text = "{what} failed in repeat {repeat}"

    def __init__(self, document: Document, variants: Collection[Variant]) -> None:
        super().__init__(document)
        self.variants = variants
        self.records: dict[tuple[Variant, int], Run] = {}  # of the runs so far, by variant and repeat
        self.periods: dict[tuple[Variant, int], Period] = {}  # of the runs that were read
        self.failed: set[Variant] = set()
        self.first_host: Host | None = None
        self.first_libraries: dict[str, str] = {}  # by flavour, in which variants may differ

    def measure(self, progress: ProgressReporter, warn: Warn) -> None:
        """Make the runs that are missing in the folder.

        A variant that failed is not run again. Its failure, a RankFailedError or UntrustedError, is
        raised after all other variants have been measured. RequestError and RunInterruptedError are
        raised at once. The results so far are kept.
        """
        with self.opened(warn):
            try:
                self.run_rounds(progress)
            finally:
                self.warn_of_pauses()

    def resume(self, previous: Document) -> None:
        """Read the finished runs of earlier calls, so that a run that fails or is interrupted drops
        none of them.

        Raises RequestError, such as for a wrong --metric, before anything is written.
        """
        for variant, repeat in self.planned():
            if (variant, repeat) in self.records:  # by an experiment, before it wrote anything
                continue
            run, is_finished = self.finished_or_new(variant, repeat)
            if is_finished and variant not in self.failed and self.can_be_checked(variant):
                self.records[variant, repeat] = self.run_and_read(variant, repeat, run, is_finished)
        self.list_runs()  # only now: a table must not show half of the runs if one cannot be read

    def planned(self) -> list[tuple[Variant, int]]:
        """All runs, by variant and repeat, in the order of the document."""
        return [(variant, repeat) for repeat in range(1, self.document.repeats + 1) for variant in self.variants]

    @property
    def is_complete(self) -> bool:
        """Whether all runs are made, and count."""
        return all(key in self.records and self.records[key].problem is None for key in self.planned())

    def can_be_checked(self, variant: Variant) -> bool:
        """Whether the runs so far suffice to check a finished run of the variant."""
        return True

    def list_runs(self) -> None:
        self.document.runs = [self.records[key] for key in self.planned() if key in self.records]

    def run_rounds(self, progress: ProgressReporter) -> None:
        for repeat in range(1, self.document.repeats + 1):
            for variant in self.variants:
                if variant not in self.failed or (variant, repeat) in self.records:
                    progress.starting(self.name(variant), repeat)
                    record = self.run_variant(variant, repeat)
                    value, unit = self.result(record) if record.problem is None else (None, None)
                    progress.measured(self.name(variant), repeat, value, unit)

    def run_variant(self, variant: Variant, repeat: int) -> Run:
        """The record of a run. Run the variant, unless a finished run exists, and add the result to
        the document.
        """
        if (variant, repeat) not in self.records:
            run, is_finished = self.finished_or_new(variant, repeat)
            try:
                self.records[variant, repeat] = self.run_and_read(variant, repeat, run, is_finished)
            except RunInterruptedError:
                self.records[variant, repeat] = record = self.new_record(variant, repeat, run.path.name)
                record.problem = "interrupted"
                raise
            finally:
                self.list_runs()
            self.write("running")
        return self.records[variant, repeat]

    def finished_or_new(self, variant: Variant, repeat: int) -> tuple[RunFolder, bool]:
        return finished_or_new_run(self.path / f"{self.folder_name(variant)}-repeat-{repeat}")

    def run_and_read(self, variant: Variant, repeat: int, run: RunFolder, is_finished: bool) -> Run:
        """The record of a run, which is launched first if it is new."""
        record = self.new_record(variant, repeat, run.path.name)
        try:
            if not is_finished:
                self.launch(variant, run)
            run_record = run.read()
            for text in run_record.warnings:  # of an earlier call too
                self.warn(text)
            require_requested_library(run_record)
            self.periods[variant, repeat] = run_record.period
            self.first_host = self.first_host or run_record.host
            if warning := other_machine(self.first_host, run_record.host):
                self.warn(warning)
            library = run_record.measured_library
            if warning := other_library(self.first_libraries.setdefault(library.flavour, library.name), library.name):
                self.warn(warning)
            self.read(variant, run, record)
        except (RequestError, RunInterruptedError):
            raise
        except HvscaleError as error:
            what = self.name(variant)
            record.problem = str(error)
            self.failed.add(variant)
            self.failure = self.failure or named_failure(what, error)
            self.warn(f"{self.failure_text.format(what=what, repeat=repeat)} and is not started again: {error}")
        return record

    def warn_of_pauses(self) -> None:
        """Warn of rounds whose runs are compared although they are not of the same time."""
        counted = {key for key, record in self.records.items() if record.problem is None}
        rounds = {
            repeat: [self.periods[variant, repeat] for variant in self.variants if (variant, repeat) in counted]
            for repeat in range(1, self.document.repeats + 1)
        }
        if text := long_pauses(rounds):
            self.warn(text)

    def tabulate(self) -> None:
        self.document.tabulate()

    def name(self, variant: Variant) -> str:
        """The name shown to users."""
        return str(variant)

    @abstractmethod
    def folder_name(self, variant: Variant) -> str:
        """The name of the variant's run folders, without the repeat."""

    @abstractmethod
    def new_record(self, variant: Variant, repeat: int, folder: str) -> Run:
        """A record of a run that has no results yet."""

    @abstractmethod
    def launch(self, variant: Variant, run: RunFolder) -> None:
        """Launch the variant in this run folder. Raises as `hvscale.launch.launch`."""

    @abstractmethod
    def read(self, variant: Variant, run: RunFolder, record: Run) -> None:
        """Read the results of a finished run into its record.

        Raises UntrustedError if they cannot be trusted.
        """

    @abstractmethod
    def result(self, record: Run) -> tuple[float | None, str | None]:
        """The value and unit that progress shows for a run that counts."""


def named_failure(what: str, error: HvscaleError) -> HvscaleError:
    """The same failure with the variant's name in the message."""
    if isinstance(error, RankFailedError):
        return RankFailedError(f"{what}: {error}", error.last_lines)
    return error
