"""A run is one start of a command on np ranks, and a run is a folder: its paths, and run.json,
which describes it.
"""

import atexit
import errno
import itertools
import os
import re
import secrets
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import AwareDatetime, BaseModel, JsonValue

from hvscale.core.documents import VersionedDocument, other_version, parse_json, to_json
from hvscale.core.errors import HvscaleError, RequestError, SavedError
from hvscale.core.files import open_new, read_text
from hvscale.core.folder_lock import FolderLock, is_abandoned, make_folder, make_own_folder

# Stopped: what had started it had seen enough.
RunState = Literal["starting", "running", "finished", "stopped", "failed", "interrupted"]
ABANDONED = "the run was interrupted: its hvscale process was killed before it could record how the run ended"
OPEN_STATES = ("starting", "running")
# Room for the last state of run.json on a disk that fills up meanwhile, beside what it holds at the
# start.
RESERVE_BYTES, RESERVE_BYTES_PER_RANK = 4096, 1024
DEFAULT_PLACEMENT = "host"
LIBRARIES_NAMED = 4  # in one sentence
HIDDEN = "(hidden)"


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file under a temporary name beside `path`, sync it and rename it: a reader sees the
    old file or the new one, whole.

    The file gets the permissions that the caller's umask allows. Raises OSError when the folder
    cannot be written or is full; the old file is then untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # Not by tempfile: its files are 0600, and the umask cannot be read without setting it for every
    # thread of the process.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """As `write_atomically`."""
    write_atomically(path, lambda stream: stream.write(text.encode(errors="surrogateescape")))


class Library(BaseModel):
    """A communication library as it names itself.

    `transports` are those it was built with, in its own words (Open MPI: its pml; MPICH: its
    netmod); `transport` is the one asked for or that it takes by itself, "auto" when it decides at
    start. `has_mpi`: False where its calls are Horovod's alone.
    """

    flavour: str
    version: str
    launcher: str | None = None
    transport: str = ""
    transports: list[str] = []
    has_mpi: bool = True

    @property
    def name(self) -> str:
        return f"{self.flavour} {self.version}"


class ReportedLibrary(BaseModel):
    """An MPI library that ranks really ran on, as it reported itself in them after MPI_Init.

    `flavour` is "unknown", and `version` empty, where no flavour knows the text. `text` is its
    beginning; `file` is the library as the ranks saw it.
    """

    flavour: str
    version: str
    text: str
    file: str
    ranks: list[int]

    @property
    def name(self) -> str:
        """Flavour and version, or an unknown library's first line."""
        return f"{self.flavour} {self.version}" if self.version else f"unknown ({self.text.partition(chr(10))[0]})"

    def is_release_of(self, library: Library) -> bool:
        return self.flavour == library.flavour and release(self.version) == release(library.version)


def release(version: str) -> tuple[list[int], str]:
    """What two spellings of one version have in common: "v5.0.11" and "5.0.11", "2021.13" and
    "2021.13.0", "2.3.7-GDR" and "2.3.7".
    """
    match = re.fullmatch(r"v?(\d+(?:\.\d+)*)([^-+\s]*).*", version.strip().lower(), re.DOTALL)
    if match is None:
        return [], version
    numbers = [int(number) for number in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return numbers, match[2]


def ranks_in_words(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`; the numbers ascend."""
    starts = [rank for before, rank in pairwise([-2, *ranks]) if rank != before + 1]
    ends = [rank for rank, after in pairwise([*ranks, ranks[-1] + 2]) if after != rank + 1]
    spans = [str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(spans)}"


class Host(BaseModel):
    """The machine a run was started on."""

    name: str
    kernel: str
    cpu: str
    cores: int
    memory_bytes: int
    gpus: list[str] = []


class RankDevices(BaseModel):
    """The GPUs as one rank has them: the variables that select among them (null: not set), and how
    many the driver offers where it runs.
    """

    variables: dict[str, str | None]
    offered: int


class NodeRecord(BaseModel):
    """One place where ranks ran, as the others reached it."""

    name: str
    address: str
    interface: str
    ranks: list[int]


class RankEnd(BaseModel):
    """How one rank ended: `exit_status` or `signal`, or neither when it was still running as the
    job was taken down.
    """

    rank: int
    host: str
    pid: int
    exit_status: int | None = None
    signal: str | None = None
    started_at: float | None = None  # its command; seconds since 1970, by the rank's own host
    ended_at: float | None = None  # as `started_at`
    killed_by_launcher: bool = False  # its launcher had killed the job
    last_output_at: float = 0.0  # of a rank that was taken down: when it wrote last, as `ended_at`
    devices: RankDevices | None = None


class ReportedSettings(BaseModel):
    """What one library said it uses: `settings` in its own names; `not_applied`: what was asked for
    and is not in effect, and why.
    """

    library: str
    settings: dict[str, str]
    not_applied: dict[str, str]


class RunRecord(VersionedDocument):
    """run.json. Written before the first process starts, and again, whole, at every change of
    state.

    `library`: what was asked for and found; `libraries_reported`: what ranks that called MPI_Init
    really ran on, nothing of the others. `launch`: the options that were asked for, as
    `LaunchOptions` writes them, with the variables of the knobs in `env`.
    `library_devices_variable`: under `--devices split`, the variable that lists all GPUs for the
    communication library.
    """

    schema_: Literal["hvscale/run/2"] = "hvscale/run/2"
    state: RunState = "starting"
    command: list[str]
    np: int
    launch: dict[str, JsonValue] = {}
    library: Library
    libraries_reported: list[ReportedLibrary] = []
    placement: str = DEFAULT_PLACEMENT
    library_devices_variable: str | None = None
    placement_settings: dict[str, Any] = {}
    nodes: list[NodeRecord] = []
    settings_in_effect: list[ReportedSettings] = []
    rank_environment: dict[str, str] = {}
    environment_passed: list[str] = []
    versions: dict[str, str] = {}
    host: Host
    working_directory: str
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    exit_status: int | None = None
    failed_rank: int | None = None
    ranks: list[RankEnd] = []
    warnings: list[str] = []

    @property
    def env_asked(self) -> dict[str, str]:
        """The variables asked for; a value that is not recorded is "(hidden)"."""
        requests = self.launch.get("env", [])
        pairs = (str(request).partition("=") for request in (requests if isinstance(requests, list) else []))
        return {name: value if equals else HIDDEN for name, equals, value in pairs}

    @property
    def measured_library(self) -> Library:
        """The one that figures of this run belong to: `library`, unless a rank reported another
        one. Of several, all are named in `version`.
        """
        if all(reported.is_release_of(self.library) for reported in self.libraries_reported):
            return self.library
        names = {reported.name: reported for reported in self.libraries_reported}
        if len(names) > 1:
            return Library(flavour="mixed", version=f"({', '.join(names)})", launcher=self.library.launcher)
        [(name, reported)] = names.items()
        version = name.removeprefix(f"{reported.flavour} ")
        return Library(flavour=reported.flavour, version=version, launcher=self.library.launcher)

    @property
    def was_abandoned(self) -> bool:
        """Whether the hvscale process that ran it was killed, so that nobody recorded its end."""
        return self.state == "interrupted" and self.ended_at is None

    @property
    def library_difference(self) -> str | None:
        """One sentence that names `library` and those that ranks really ran on; None where they
        agree or nothing was reported.
        """
        if all(reported.is_release_of(self.library) for reported in self.libraries_reported):
            return None
        by_name: dict[str, list[ReportedLibrary]] = defaultdict(list)
        for reported in self.libraries_reported:
            by_name[reported.name].append(reported)
        named = []
        for name, libraries in by_name.items():
            ranks = sorted({rank for reported in libraries for rank in reported.ranks})
            named.append(f"{ranks_in_words(ranks)} ran on {name} ({libraries[0].file})")
        more = [f"others on {len(named) - LIBRARIES_NAMED} more"] if len(named) > LIBRARIES_NAMED else []
        return f"requested {self.library.name}, but {', '.join([*named[:LIBRARIES_NAMED], *more])}"


class RunFolder:
    """Paths inside a run's folder, and its run.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_json = path / "run.json"
        self.steps = path / "steps.jsonl"
        self.hvprof = path / "hvprof"
        self.logs = path / "logs"
        self.ranks = path / "ranks"
        self.timeline = self.hvprof / "horovod-timeline.json"
        self.reserve = path / ".reserve"
        self.lock: FolderLock | None = None
        self.is_closed = False  # run.json holds a last state

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.log"

    @classmethod
    def create(cls, path: Path, continued: bool = False) -> "RunFolder":
        """Make the folder with its sub-folders and lock it for this process, until `at_work` ends
        or `unlock` is called.

        `continued`: it may hold a run already. Raises RequestError when it does otherwise, when
        another process or another user has it, or when it cannot be written.
        """
        run = cls(path)
        try:
            run._check_free(continued)
            run.lock = FolderLock(path)
            try:
                run._check_free(continued)  # another process may have come and gone since
                for folder in (run.hvprof, run.logs, run.ranks):
                    run.make_subfolder(folder)
            except BaseException:
                run.unlock()
                raise
        except OSError as error:
            raise cannot_write(path, error) from error
        return run

    def _check_free(self, continued: bool) -> None:
        if not continued and (self.run_json.exists() or self.steps.exists()):
            raise RequestError(f"{self.path} holds a run already: give another folder with --run")

    def make_subfolder(self, folder: Path) -> None:
        """Raises RequestError when it cannot be made, or is there and not our own."""
        try:
            make_own_folder(folder)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def unlock(self) -> None:
        if self.lock is not None:
            self.lock.close()

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Raises RequestError when `path` is not the folder of a run."""
        run = cls(path)
        try:
            if not path.is_dir():
                raise RequestError(f"{path} is not a folder: give the folder of a run")
            if not run.run_json.exists():
                raise RequestError(f"{path} is not the folder of a run: it holds no run.json")
            for folder in (run.hvprof, run.logs):
                if folder.exists():
                    next(folder.iterdir(), None)  # a glob of a folder that cannot be read finds nothing
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}") from error
        return run

    def read(self) -> RunRecord:
        """run.json; a run whose hvscale process was killed on this machine is interrupted, whatever
        it says.

        Raises RequestError when run.json was cut short or is not ours.
        """
        abandoned, text = is_abandoned(self.path), ""
        try:
            text = read_text(self.run_json)
            record = RunRecord.model_validate(parse_json(text))
            # Asked before and after: its process may have ended well, or another one begun, in
            # between.
            if record.state in OPEN_STATES and abandoned and is_abandoned(self.path):
                record.state = "interrupted"
            return record
        except (OSError, ValueError) as error:
            if writer := other_version(RunRecord, text):
                raise RequestError(
                    f"{self.path} was written by {writer}: make the run again, or read it with that version"
                ) from error
            what = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise RequestError(
                f"{self.run_json} cannot be read ({what}): the run's other files are untouched"
            ) from error

    def begin(self, record: RunRecord) -> None:
        """The first `write`. It also takes the room on the disk that the last state will need."""
        try:
            with open_new(self.reserve) as stream:
                size = len(as_text(record)) + RESERVE_BYTES + RESERVE_BYTES_PER_RANK * record.np
                take_room(stream.fileno(), size)
            write_text(self.run_json, as_text(record))
        except OSError as error:
            self.reserve.unlink(missing_ok=True)
            raise cannot_write(self.path, error) from error

    def write(self, record: RunRecord) -> None:
        """Raises RequestError when the folder cannot be written or the disk is full."""
        try:
            write_text(self.run_json, as_text(record))
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.is_closed = record.state not in OPEN_STATES

    def close(self, record: RunRecord, error: BaseException) -> None:
        """Write the last state of a run that `error` has ended, with the reason, also when the disk
        is full.
        """
        record.state, record.exit_status = ended_by(error)
        record.ended_at = datetime.now(UTC)
        if record.state == "failed":
            record.warnings.append(str(error) if isinstance(error, HvscaleError) else repr(error))
        try:
            self.write(record)
        except RequestError:
            with suppress(OSError), self.reserve.open("r+b") as stream:
                stream.write(as_text(record).encode())
                stream.truncate()
                os.fsync(stream.fileno())
                self.reserve.replace(self.run_json)

    @contextmanager
    def at_work(self, record: RunRecord) -> Iterator[None]:
        """Within, the run is this process's. An error that leaves run.json without a last state
        closes it; then the folder is unlocked.
        """
        try:
            yield
        except BaseException as error:
            if not self.is_closed:
                self.close(record, error)
            raise
        finally:
            with suppress(OSError):
                self.reserve.unlink()
            self.unlock()


def take_room(descriptor: int, size: int) -> None:
    """Have the file system keep `size` bytes for a new file, where it can. Raises OSError when the
    disk is full.
    """
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EINVAL):
            raise


def as_text(record: RunRecord) -> str:
    return to_json(record) + "\n"


def ended_by(error: BaseException) -> tuple[RunState, int]:
    """The last state of a run that an error has ended, and its exit status."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 128 + signal.SIGINT
    if isinstance(error, SavedError):
        return "interrupted", error.exit_status
    return "failed", error.exit_status if isinstance(error, HvscaleError) else 1


def cannot_write(path: Path, error: OSError) -> RequestError:
    return RequestError(
        f"cannot write the run folder {path}: {error.strerror}. Choose another with --run, or make room"
    )


def default_run_path(command: list[str], root: Path = Path("runs")) -> Path:
    """Make the new folder `runs/<UTC time>-<name>`, the name taken from the command's last
    path-like word.

    No two processes get the same one. Left empty, it is removed when this process ends. Raises
    RequestError when it cannot be made.
    """
    words = [re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(word).name) for word in command if not word.startswith("-")]
    name = "-".join(words[:3])[:48].strip("-.") or "run"
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}"
    for number in itertools.count(1):
        path = (root / (stem if number == 1 else f"{stem}-{number}")).absolute()
        try:
            if make_folder(path):
                break
        except OSError as error:
            raise cannot_write(path, error) from error
    atexit.register(remove_if_empty, path)
    return path


def remove_if_empty(folder: Path) -> None:
    """Remove a run's folder, and the one around it, where nothing is in them."""
    with suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()
