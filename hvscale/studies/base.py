"""A study: a folder with a document, which is gone on with where it was broken off; and fresh starts in turns, as most studies make them."""

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
