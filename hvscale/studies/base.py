"""The base of all studies: a locked folder with a document, resumed where an earlier call was
interrupted.

A new study subclasses `Study`, or `interleaved.InterleavedStudy` if it starts variants in rounds,
or `comparison.ComparisonStudy` if the variants are one command under several launch options. It
states `verb` and `same` and implements the abstract methods; its document subclasses
`document.StudyDocument`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from hvscale.core.documents import to_json
from hvscale.core.errors import HvscaleError
from hvscale.core.run_folder import cannot_write, write_text
from hvscale.launch.controller import RunInterruptedError
from hvscale.studies.document import State, StudyDocument
from hvscale.studies.folder import study_in

Warn = Callable[[str], None]


Document = TypeVar("Document", bound=StudyDocument)


class Study(ABC, Generic[Document]):
    """One study: its folder, and `document`, which is written to `file` after every run; `page` is
    written at the end.
    """

    verb: str  # the command's name; the files are named after it
    same: tuple[str, ...]  # fields of the document that a call must share with the study it resumes
    started = "*-repeat-*"  # the folders of starts

    def __init__(self, document: Document) -> None:
        self.path, self.document = Path(document.folder), document
        name = self.verb.replace(" ", "-")
        self.file, self.page = self.path / f"{name}.json", self.path / f"{name}.html"
        self.failure: HvscaleError | None = None
        self.tell_user: Warn

    @contextmanager
    def at_work(self, warn: Warn) -> Iterator[None]:
        """Lock the folder, resume, and record in the document how the work ended. Raises as
        `study_in`, and at the end `failure`.
        """
        self.tell_user = warn
        for text in self.document.warnings:
            warn(text)
        with study_in(self.path, self.file, self.document, self.same, self.started) as before:
            if before is not None:
                self.resume(before)
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

    def resume(self, before: Document) -> None:
        """Take over what an earlier call left in the document; finished runs in the folder are
        found without it.
        """

    def prepare(self) -> None:
        """Prepare the folder before the first run."""

    def warn(self, text: str) -> None:
        """Print a warning and keep it in the document, each text once."""
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
        """Make the document's tables from what has been measured so far."""

    @abstractmethod
    def has_figures(self) -> bool:
        """Whether anything has been measured that a table or page can show."""

    def html(self) -> str | None:
        """The page, or None. Implementations import Plotly inside: an invalid request must not wait
        for it.
        """
        return None
