"""The folder of a study: locked by one process at a time, and resumed."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from hvscale.core.documents import from_json, other_version
from hvscale.core.errors import RequestError
from hvscale.core.files import read_text
from hvscale.core.folder_lock import LOCK, FolderLock
from hvscale.core.run_folder import RunFolder, cannot_write
from hvscale.studies.document import StudyDocument

Document = TypeVar("Document", bound=StudyDocument)


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Make the folder if needed and lock it for this process; a folder that was made and is still
    empty is removed again.

    Raises RequestError when it cannot be made, or another process or another user has it.
    """
    try:
        lock = FolderLock(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    with closing(lock):
        yield


def refuse_unless_empty(folder: Path) -> None:
    """Raises RequestError if the folder exists and holds anything but the lock, or cannot be
    read.
    """
    try:
        holds_something = folder.exists() and any(entry.name != LOCK for entry in folder.iterdir())
    except OSError as error:
        raise cannot_write(folder, error) from error
    if holds_something:
        raise RequestError(f"{folder} holds something else already: give another folder with --run")


def load_previous(file: Path, asked: Document, same: tuple[str, ...]) -> Document | None:
    """The document that an earlier call left in `file` of a study's folder; None if the folder is
    new.

    Raises RequestError if the folder holds something else, or a study that differs from `asked` in
    a field of `same`.
    """
    if not file.exists():
        refuse_unless_empty(file.parent)
        return None
    text = ""
    try:
        text = read_text(file)
        before = from_json(type(asked), text)
    except (OSError, ValueError) as error:
        if writer := other_version(type(asked), text):
            raise RequestError(f"{file.parent} was written by {writer}: use a new --run folder") from error
        raise RequestError(f"{file} cannot be read, it may be damaged: use a new --run folder") from error
    for name in same:
        if getattr(before, name) != getattr(asked, name):
            raise RequestError(f"{file.parent} holds another study: its {name} differs; give another folder with --run")
    return before


@contextmanager
def study_in(path: Path, file: Path, asked: Document, same: tuple[str, ...], runs: str) -> Iterator[Document | None]:
    """Lock the folder, new or as an earlier call left it, and yield the document in `file` if there
    is one.

    A new folder in which nothing was started, so that no folder matches `runs`, is removed again.
    Raises as `lock_folder` and `load_previous`.
    """
    new = not file.exists()
    with lock_folder(path):
        before = load_previous(file, asked, same)
        try:
            yield before
        finally:
            if new and not any(path.glob(runs)):
                file.unlink(missing_ok=True)


def finished_or_new(path: Path) -> tuple[RunFolder, bool]:
    """The finished run of an earlier call under this name and True, or else a new folder and False;
    failed runs keep theirs.
    """
    attempt = 0
    while True:
        attempt += 1
        run = RunFolder(path.with_name(path.name + (f"-attempt-{attempt}" if attempt > 1 else "")))
        if not run.path.exists():
            return run, False
        with suppress(RequestError):
            if RunFolder.open(run.path).read().state == "finished":
                return run, True
