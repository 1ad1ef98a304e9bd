"""The base class of all studies: a locked, resumable folder with a document.

A new study subclasses `Study`; `interleaved.InterleavedStudy` if it runs variants in rounds; or
`comparison.study.ComparisonStudy` if the variants are one command under several launch options. It
sets `verb` and `must_match` and implements the abstract methods. Its document subclasses
`document.StudyDocument`.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

from hvscale.core.documents import from_json, other_version, to_json
from hvscale.core.errors import HvscaleError, RequestError
from hvscale.core.files import read_bytes, read_text
from hvscale.core.folder_lock import LOCK, FolderLock
from hvscale.core.run_folder import Host, RunFolder, cannot_write, ranks_in_words, write_text
from hvscale.core.units import human_age
from hvscale.launch.controller import RunInterruptedError
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import StudyDocument, StudyState

Warn = Callable[[str], None]
Period = tuple[datetime, datetime]
MIN_PAUSE = timedelta(minutes=1)  # starting the next run takes up to that, such as in a container
# Launch options that name a file which decides what is measured.
FILE_OPTIONS = ("settings", "collectives", "hostfile")


Document = TypeVar("Document", bound=StudyDocument)


class Study(ABC, Generic[Document]):
    """One study in its folder.

    `document` is written to `file` after every run, and the HTML page to `page` at the end;
    `page_written`: whether this call has written it.
    """

    verb: str  # the command's name; the files are named after it
    must_match: tuple[str, ...]  # fields of the document that a resuming call must not change
    run_folders = "*-repeat-*"  # pattern of the names of run folders

    def __init__(self, document: Document) -> None:
        self.path, self.document = Path(document.folder), document
        launch = getattr(document, "launch", {})
        document.files |= files_of([launch] if isinstance(launch, LaunchOptions) else launch.values())
        name = self.verb.replace(" ", "-")
        self.file, self.page = self.path / f"{name}.json", self.path / f"{name}.html"
        self.page_written = False
        self.failure: HvscaleError | None = None
        self.tell_user: Warn

    @contextmanager
    def opened(self, warn: Warn) -> Iterator[None]:
        """Lock the folder, resume an earlier call, and record in the document how this one ended.

        A new folder in which nothing was run is removed again. Raises as `lock_folder` and
        `load_previous`, and at the end `failure`.
        """
        self.tell_user = warn
        for text in self.document.warnings:
            warn(text)
        is_new = not self.file.exists()
        with lock_folder(self.path):
            previous = load_previous(self.file, self.document, self.must_match)
            try:
                if previous is not None:
                    self.resume(previous)
                with self._state_recorded():
                    yield
            finally:
                if is_new and not any(self.path.glob(self.run_folders)):
                    self.discard()

    @contextmanager
    def _state_recorded(self) -> Iterator[None]:
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

    def resume(self, previous: Document) -> None:
        """Take over the results of earlier calls. Nothing has been written yet, so an error here
        leaves their files as they are.
        """

    def prepare(self) -> None:
        """Prepare the folder before the first run."""

    def discard(self) -> None:
        """Remove what this study wrote, because nothing was run."""
        self.file.unlink(missing_ok=True)

    def warn(self, text: str) -> None:
        """Print a warning and keep it in the document, each text once."""
        if text not in self.document.warnings:
            self.document.warnings.append(text)
            self.tell_user(text)

    def write(self, state: StudyState) -> None:
        """Write the document, and the page if the study has ended.

        Raises RequestError if the folder cannot be written or the disk is full.
        """
        self.document.state = state
        self.tabulate()
        try:
            html = self.html() if state == "finished" and self.has_figures() else None
            if html is not None:  # before the document: "finished" means that the page exists
                self._write_page(html)
            write_text(self.file, to_json(self.document) + "\n")
            html = self.html() if state in ("failed", "interrupted") and self.has_figures() else None
            if html is not None:
                self._write_page(html)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _write_page(self, html: str) -> None:
        write_text(self.page, html)
        self.page_written = True

    @abstractmethod
    def tabulate(self) -> None:
        """Compute the document's tables from the results so far."""

    @abstractmethod
    def has_figures(self) -> bool:
        """Whether there is a result that a table or page can show."""

    def html(self) -> str | None:
        """The page, or None.

        Implementations import Plotly inside: an invalid request must not wait for it.
        """
        return None


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Create the folder if needed and lock it for this process.

    A new folder that stays empty is removed again. Raises RequestError if the folder cannot be
    created, or another process or user has it.
    """
    try:
        lock = FolderLock(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    with closing(lock):
        yield


def require_empty(folder: Path) -> None:
    """Raises RequestError if the folder contains anything but the lock, or cannot be read."""
    try:
        has_content = folder.exists() and any(entry.name != LOCK for entry in folder.iterdir())
    except OSError as error:
        raise cannot_write(folder, error) from error
    if has_content:
        raise RequestError(f"{folder} is not empty: give another folder with --run")


def load_previous(file: Path, asked: Document, must_match: tuple[str, ...]) -> Document | None:
    """The document of an earlier call in `file`; None if the folder is new.

    Raises RequestError if the folder holds something else, or a study that differs from `asked` in
    a field of `must_match`.
    """
    if not file.exists():
        require_empty(file.parent)
        return None
    text = ""
    try:
        text = read_text(file)
        previous = from_json(type(asked), text)
    except (OSError, ValueError) as error:
        if writer := other_version(type(asked), text):
            raise RequestError(f"{file.parent} was written by {writer}: use a new --run folder") from error
        raise RequestError(f"{file} cannot be read, it may be damaged: use a new --run folder") from error
    if differing := difference(previous, asked, must_match):
        raise RequestError(f"{file.parent} holds another study: {differing}; give another folder with --run")
    return previous


def difference(previous: Document, asked: Document, must_match: Iterable[str]) -> str | None:
    """How two documents differ in a field of `must_match`, or in the files that they were given.

    Files are compared by their contents: a copy is the same file. Documents of older versions do
    not know the contents: their files are compared by their paths.
    """
    for name in must_match:
        fields = [getattr(document, name) for document in (previous, asked)]
        before, now = map(without_paths, fields) if previous.files else fields
        if before != now:
            changed = changed_parts(before, now)
            return f"its {name} differs" + (f" in {', '.join(changed)}" if changed else "")
    changed = [name for name, digest in previous.files.items() if digest != asked.files.get(name)]
    return f"the contents of its {changed[0]} differ" if changed else None


def changed_parts(before: Any, now: Any) -> list[str]:
    """The options, or keys, in which two values of a field differ; empty for values without any."""
    parts = [
        {**dict(value), **dict(value.placement)} if isinstance(value, LaunchOptions) else value
        for value in (before, now)
    ]
    if not all(isinstance(one, dict) for one in parts):
        return []
    first, other = parts
    return [key for key in dict.fromkeys([*first, *other]) if first.get(key) != other.get(key)]


def files_of(launches: Iterable[LaunchOptions]) -> dict[str, str]:
    """The digests of the files that launch options name, by option. Raises as `digest_of`."""
    digests: dict[str, list[str]] = {}
    for launch in launches:
        for option, path in files_in(launch).items():
            digests.setdefault(option, []).append(digest_of(path))
    return {option: " ".join(dict.fromkeys(found)) for option, found in digests.items()}


def files_in(launch: LaunchOptions) -> dict[str, Path]:
    """The files that these options name, by option."""
    values = {**dict(launch), **dict(launch.placement)}
    return {option: values[option] for option in FILE_OPTIONS if values[option] is not None}


def digest_of(path: Path) -> str:
    """The SHA-256 of a file. Raises RequestError if it cannot be read."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from error


def without_paths(value: Any) -> Any:
    """Launch options, or a dictionary of them, with only whether they name a file; else `value`."""
    if isinstance(value, dict):
        return {name: without_paths(one) for name, one in value.items()}
    if not isinstance(value, LaunchOptions):
        return value
    given = dict.fromkeys(files_in(value), Path())
    of_placement = {option: given.pop(option) for option in type(value.placement).model_fields if option in given}
    return value.replace(placement=value.placement.model_copy(update=of_placement), **given)


def finished_or_new_run(path: Path) -> tuple[RunFolder, bool]:
    """The finished run of an earlier call and True, or else a new folder and False.

    Failed runs keep their folders; a retry gets `path` with -attempt-2, -attempt-3 ...
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


def other_machine(first: Host, other: Host) -> str | None:
    """A warning about runs that were started on two kinds of machines; None if they are alike."""
    if (first.cpu, first.cores, first.gpus) == (other.cpu, other.cores, other.gpus):
        return None
    one, another = (f"{host.name} ({host.cpu}, {host.cores} cores)" for host in (first, other))
    return f"runs on {one} are compared with runs on {another}: to measure one machine, use a new --run folder"


def other_library(first: str, other: str) -> str | None:
    """A warning about runs on two versions of a library; None if the names are the same."""
    if first == other:
        return None
    return f"runs on {first} are compared with runs on {other}: to measure one version, use a new --run folder"


def long_pauses(rounds: Mapping[int, Collection[Period]]) -> str | None:
    """A warning about rounds with a pause between their runs, as an interruption leaves it.

    `rounds`: when the runs of each round began and ended. A pause counts if it is longer than all
    runs of the round: shorter ones keep runs as close as interleaving does. None without any.
    """
    found: dict[int, timedelta] = {}
    for number, periods in rounds.items():
        runs = sum((end - start for start, end in periods), timedelta())
        pause = max((after[0] - before[1] for before, after in pairwise(sorted(periods))), default=timedelta())
        if pause > max(runs, MIN_PAUSE):
            found[number] = pause
    if not found:
        return None
    one, them = ("its", "it") if len(found) == 1 else ("their", "them")
    return (
        f"{ranks_in_words(sorted(found), 'round')}: {one} runs were measured with a pause of up to "
        f"{human_age(max(found.values()).total_seconds())}, so {one} ratios may show how the machine changed meanwhile; to "
        f"measure {them} again, remove {one} run folders (*-repeat-N and their attempts) and give the same command"
    )
