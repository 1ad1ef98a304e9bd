"""A study that starts each of several variants afresh, once in every round: A B C, A B C, ..."""

from abc import abstractmethod
from collections.abc import Collection
from typing import Generic, Protocol, TypeVar

from hvscale.core.errors import HvscaleError, RankFailedError, RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.launch.controller import RunInterruptedError
from hvscale.launch.mpi.reported_library import require_requested_library
from hvscale.studies.base import Study, Warn
from hvscale.studies.document import InterleavedDocument
from hvscale.studies.folder import finished_or_new


class ProgressReporter(Protocol):
    """Hears of each run; `report.progress.RunProgress` shows it on a terminal."""

    def starting(self, what: str, repeat: int) -> None: ...

    def measured(self, what: str, repeat: int, value: float | None, unit: str | None) -> None:
        """`value`: None if the run failed."""


class RunOfStudy(Protocol):
    """One run, as the document has it. `problem`: why it does not count."""

    problem: str | None


Document = TypeVar("Document", bound=InterleavedDocument)
Variant = TypeVar("Variant")  # hashable
Run = TypeVar("Run", bound=RunOfStudy)


class InterleavedStudy(Study[Document], Generic[Document, Variant, Run]):
    """One that starts each of `starts` once in each round; what failed is in `failed` and is not
    started again.
    """

    failing = "{what} failed in repeat {repeat}"

    def __init__(self, document: Document, starts: Collection[Variant]) -> None:
        super().__init__(document)
        self.starts = starts
        self.failed: set[Variant] = set()

    def measure(self, progress: ProgressReporter, warn: Warn) -> None:
        """Make the runs that the folder does not hold yet.

        A variant that failed once is not started again; its failure, a RankFailedError or
        UntrustedError, is raised after all other variants have been measured. Raises RequestError
        and RunInterruptedError at once. What was measured until then is kept.
        """
        with self.at_work(warn):
            self.run_rounds(progress)

    def run_rounds(self, progress: ProgressReporter) -> None:
        for repeat in range(1, self.document.repeats + 1):
            for variant in self.starts:
                if variant not in self.failed:
                    progress.starting(self.name(variant), repeat)
                    done = self.start(variant, repeat)
                    progress.measured(self.name(variant), repeat, *self.figure(done))

    def start(self, variant: Variant, repeat: int) -> Run:
        """Start the variant, unless a finished run exists, and add the result to the document."""
        run, is_there = finished_or_new(self.path / f"{self.label(variant)}-repeat-{repeat}")
        done = self.record(variant, repeat, run.path.name)
        try:
            if not is_there:
                self.launch(variant, run)
            require_requested_library(run.read())
            self.read(variant, run, done)
        except RequestError:
            raise
        except RunInterruptedError:
            done.problem = "interrupted"
            self.document.runs.append(done)
            raise
        except HvscaleError as error:
            what = self.name(variant)
            done.problem = str(error)
            self.failed.add(variant)
            self.failure = self.failure or named_failure(what, error)
            self.warn(f"{self.failing.format(what=what, repeat=repeat)} and is not started again: {error}")
        self.document.runs.append(done)
        self.write("running")
        return done

    def tabulate(self) -> None:
        self.document.tabulate()

    def name(self, variant: Variant) -> str:
        """The name shown to users."""
        return str(variant)

    @abstractmethod
    def label(self, variant: Variant) -> str:
        """The name of its runs' folders."""

    @abstractmethod
    def record(self, variant: Variant, repeat: int, folder: str) -> Run:
        """A new record of a run, without results."""

    @abstractmethod
    def launch(self, variant: Variant, run: RunFolder) -> None:
        """Raises as `hvscale.launch.launch`."""

    @abstractmethod
    def read(self, variant: Variant, run: RunFolder, done: Run) -> None:
        """Read the results of a finished run into its record. Raises UntrustedError if they cannot
        be trusted.
        """

    @abstractmethod
    def figure(self, done: Run) -> tuple[float | None, str | None]:
        """The value and unit to show of a run; None if it failed."""


def named_failure(what: str, error: HvscaleError) -> HvscaleError:
    """The same failure with the variant's name in the message."""
    if isinstance(error, RankFailedError):
        return RankFailedError(f"{what}: {error}", error.last_lines)
    return error
