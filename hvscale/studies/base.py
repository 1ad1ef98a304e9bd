"""A study: a folder with a document, which is gone on with where it was broken off; and fresh starts in turns, as most studies make them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from hvscale.core.documents import to_json
from hvscale.core.errors import HvscaleError, RankFailedError, RequestError
from hvscale.core.run_folder import RunFolder, cannot_write, write_text
from hvscale.launch.controller import RunInterruptedError
from hvscale.launch.mpi.reported_library import require_asked_library
from hvscale.studies.folder import State, StudyDocument, finished_or_new, study_in

# What is started, and the repeat; behind a start also its figure, None where it failed, and the figure's unit.
Starting = Callable[[str, int], None]
Measured = Callable[[str, int, float | None, str | None], None]
Warn = Callable[[str], None]


class RunOfStudy(Protocol):
    """One start, as the document has it. `problem`: why it does not count."""

    problem: str | None


class RunsDocument(StudyDocument, Protocol):
    """That of a study in turns: `repeats` rounds of `runs`."""

    repeats: int
    runs: list[Any]

    def tabulate(self) -> None:
        """Make the tables, over the runs so far."""


Document = TypeVar("Document", bound=StudyDocument)
DocumentOfRuns = TypeVar("DocumentOfRuns", bound=RunsDocument)
Variant = TypeVar("Variant")  # hashable: what is started in turns
Run = TypeVar("Run", bound=RunOfStudy)


class Study(ABC, Generic[Document]):
    """One study: its folder, and `document`, which is in `file` after every start; `page` is made at the end."""

    verb: str  # the command's, which the files are named after
    same: tuple[str, ...]  # what makes two studies the same: fields of the document
    started = "*-repeat-*"  # the folders of starts

    def __init__(self, document: Document) -> None:
        self.path, self.document = Path(document.folder), document
        name = self.verb.replace(" ", "-")
        self.file, self.page = self.path / f"{name}.json", self.path / f"{name}.html"
        self.failure: HvscaleError | None = None
        self.tell_user: Warn

    @contextmanager
    def at_work(self, warn: Warn) -> Iterator[None]:
        """Holds the folder, and keeps in the document how the work ended. Raises as `study_in`, and at the end `failure`."""
        self.tell_user = warn
        for text in self.document.warnings:
            warn(text)
        with study_in(self.path, self.file, self.document, self.same, self.started) as before:
            if before is not None:
                self.take_up(before)
            self.write("running")
            try:
                self.prepare()
                yield
                if self.failure is not None:
                    raise self.failure
                self.write("finished")
            except BaseException as error:
                failed = isinstance(error, HvscaleError) and not isinstance(error, RunInterruptedError)
                self.write("failed" if failed else "interrupted")
                raise

    def take_up(self, before: Document) -> None:
        """Take what an earlier call has left in the document; the runs in the folder are found by themselves."""

    def prepare(self) -> None:
        """What has to be done in the folder before anything can be started."""

    def warn(self, text: str) -> None:
        """Each once; they are kept in the document."""
        if text not in self.document.warnings:
            self.document.warnings.append(text)
            self.tell_user(text)

    def write(self, state: State) -> None:
        """Raises RequestError when the folder cannot be written or the disk is full."""
        self.document.state = state
        self.tabulate()
        try:
            html = self.html() if state == "finished" and self.has_figures() else None
            if html is not None:  # before the document, which says that all is there
                write_text(self.page, html)
            write_text(self.file, to_json(self.document) + "\n")
            html = self.html() if state in ("failed", "interrupted") and self.has_figures() else None
            if html is not None:
                write_text(self.page, html)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    @abstractmethod
    def tabulate(self) -> None:
        """Make the document's tables, over what has been measured."""

    @abstractmethod
    def has_figures(self) -> bool:
        """Whether there is anything to show."""

    def html(self) -> str | None:
        """The page, None where the study has none. It imports Plotly itself: a wrong request need not wait for that."""
        return None


class StudyInTurns(Study[DocumentOfRuns], Generic[DocumentOfRuns, Variant, Run]):
    """One that starts each of `starts` once in each round; what failed is in `failed` and is not started again."""

    failing = "{what} failed in repeat {repeat}"

    def __init__(self, document: DocumentOfRuns, starts: Collection[Variant]) -> None:
        super().__init__(document)
        self.starts = starts
        self.failed: set[Variant] = set()

    def measure(self, *, starting: Starting, measured: Measured, warn: Warn) -> None:
        """Make the runs that the folder does not hold. `starting(what, repeat)` is told before one, `measured(what, repeat, figure, unit)` after.

        What failed once is not started again. The failure is raised after all others have been measured: RankFailedError, or UntrustedError.
        Raises RequestError and RunInterruptedError at once. What was measured until then is kept in any case.
        """
        with self.at_work(warn):
            self.take_turns(starting, measured)

    def take_turns(self, starting: Starting, measured: Measured) -> None:
        for repeat in range(1, self.document.repeats + 1):
            for variant in self.starts:
                if variant not in self.failed:
                    starting(self.name(variant), repeat)
                    done = self.start(variant, repeat)
                    measured(self.name(variant), repeat, *self.figure(done))

    def start(self, variant: Variant, repeat: int) -> Run:
        """Start it, unless a finished run is there, and add what came of it to the document."""
        run, is_there = finished_or_new(self.path / f"{self.label(variant)}-repeat-{repeat}")
        done = self.record(variant, repeat, run.path.name)
        try:
            if not is_there:
                self.launch(variant, run)
            require_asked_library(run.read())
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
        """For people."""
        return str(variant)

    @abstractmethod
    def label(self, variant: Variant) -> str:
        """For the folders of its runs."""

    @abstractmethod
    def record(self, variant: Variant, repeat: int, folder: str) -> Run:
        """A start of which nothing is known yet, as the document has it."""

    @abstractmethod
    def launch(self, variant: Variant, run: RunFolder) -> None:
        """Raises as `hvscale.launch.launch`."""

    @abstractmethod
    def read(self, variant: Variant, run: RunFolder, done: Run) -> None:
        """Put what a finished run has left into its record. Raises UntrustedError where that is no measurement."""

    @abstractmethod
    def figure(self, done: Run) -> tuple[float | None, str | None]:
        """What is shown of a start, None where it failed, and its unit."""


def named_failure(what: str, error: HvscaleError) -> HvscaleError:
    """The same failure, which says of what it is."""
    if isinstance(error, RankFailedError):
        return RankFailedError(f"{what}: {error}", error.last_lines)
    return error
