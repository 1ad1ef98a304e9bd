"""The folder of a run and its run.json.

A run is one start of a command on np ranks.
"""

import atexit
import errno
import itertools
import os
import re
import secrets
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import AwareDatetime, BaseModel, JsonValue, PositiveInt

from hvscale.core.documents import VersionedDocument, other_version, parse_json, to_json
from hvscale.core.errors import HvscaleError, RequestError, SavedError
from hvscale.core.files import is_device, open_new, read_text
from hvscale.core.folder_lock import FolderLock, check_unlocked, is_abandoned, make_folder, make_own_folder
from hvscale.core.numbers import Ranks

# Stopped: the program that started the run ended it early.
RunState = Literal["starting", "running", "finished", "stopped", "failed", "interrupted"]
ABANDONED = "the run was interrupted: its hvscale process was killed before it could record how the run ended"
OPEN_STATES = ("starting", "running")
# Disk space reserved for the last state of run.json, beyond its size at the start.
RESERVE_BYTES, RESERVE_BYTES_PER_RANK = 4096, 1024
DEFAULT_PLACEMENT = "host"
LIBRARIES_NAMED = 4  # in one sentence
MOST_SPANS = 8  # of ranks, in one sentence
HIDDEN = "(hidden)"


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file under a temporary name beside `path`, sync it and rename it.

    A reader sees the whole old file or the whole new one. The file gets the permissions that the
    caller's umask allows. A device such as /dev/stdout is written to and stays. Raises OSError if
    the folder cannot be written or is full; the old file is then unchanged.
    """
    if is_device(path):
        sys.stdout.flush()  # it may be the same file
        with path.open("ab") as device:
            write(device)
        return
    # Cut, because the name may be as long as the file system allows.
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}")
    # tempfile creates files with mode 0600, and reading the umask means setting it for every thread
    # of the process.
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

    `transports`: those it was built with, by its own names (Open MPI: its pml; MPICH: its netmod).
    `transport`: the requested or default one; "auto" if the library decides at start. `has_mpi`:
    False if only Horovod calls it.
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
    """An MPI library that ranks ran on, as it reported itself after MPI_Init.

    `flavour` is "unknown", and `version` empty, if no flavour recognizes the text. `text`: its
    beginning. `file`: the library's path in the ranks.
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
    """The part of a version that its spellings share.

    Equal are "v5.0.11" and "5.0.11", "2021.13" and "2021.13.0", "2.3.7-GDR" and "2.3.7".
    """
    match = re.fullmatch(r"v?(\d{1,18}(?:\.\d{1,18})*)(?!\d)([^-+\s]*).*", version.strip().lower(), re.DOTALL)
    if match is None:
        return [], version
    numbers = [int(number) for number in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return numbers, match[2]


def ranks_in_words(ranks: list[int], what: str = "rank") -> str:
    """`rank 3`, or `ranks 0-2, 5`, or `ranks 0, 2, ... and 9 more`; the ranks must ascend.

    `what`: another word for what is numbered.
    """
    starts = [rank for before, rank in pairwise([-2, *ranks]) if rank != before + 1]
    ends = [rank for rank, after in pairwise([*ranks, ranks[-1] + 2]) if after != rank + 1]
    spans = [str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    more = sum(rank > ends[MOST_SPANS - 1] for rank in ranks) if len(spans) > MOST_SPANS else 0
    named = f"{what if len(ranks) == 1 else f'{what}s'} {', '.join(spans[:MOST_SPANS])}"
    return f"{named} and {more} more" if more else named


Scheduling = Literal["default", "batch", "idle", "fifo", "round-robin"]


class Host(BaseModel):
    """The machine a run was started on.

    `scheduling`: how the kernel shares cores between ranks; "round-robin" under `chrt --rr`.
    `cache_bytes`: of a core's second-level cache, and its share of the third; None if unknown.
    `tcp_congestion_control`: the kernel's default, such as bbr; None if unknown.
    """

    name: str
    kernel: str
    cpu: str
    cores: int
    memory_bytes: int
    gpus: list[str] = []
    scheduling: Scheduling = "default"
    cache_bytes: tuple[PositiveInt, PositiveInt] | None = None
    tcp_congestion_control: str | None = None


class RankDevices(BaseModel):
    """The GPUs of a rank.

    `variables`: those that select among them (null: not set). `offered`: the number that the driver
    offers.
    """

    variables: dict[str, str | None]
    offered: int


class NodeRecord(BaseModel):
    """A place where ranks ran, with the address by which others reached it."""

    name: str
    address: str
    interface: str
    ranks: list[int]


class RankEnd(BaseModel):
    """How a rank ended.

    Both `exit_status` and `signal` are null if it was still running when the job was killed.
    """

    rank: int
    host: str
    pid: int
    exit_status: int | None = None
    signal: str | None = None
    started_at: float | None = None  # start of its command; seconds since 1970, by the rank's host
    ended_at: float | None = None  # as `started_at`
    killed_by_launcher: bool = False  # its launcher killed the job
    last_output_at: float = 0.0  # for a killed rank: time of its last output, as `ended_at`
    devices: RankDevices | None = None


class ReportedSettings(BaseModel):
    """The settings that a library reports as in effect.

    `settings`: by the library's own names. `not_applied`: the requested ones that are not in
    effect, and why.
    """

    library: str
    settings: dict[str, str]
    not_applied: dict[str, str]


class RunRecord(VersionedDocument):
    """run.json, written before the first process starts and rewritten at every change of state.

    `library`: the requested library as found. `libraries_reported`: those that ranks which called
    MPI_Init ran on. `launch`: the options as `LaunchOptions` writes them, with the knobs' variables
    in `env`. `library_devices_variable`: under `--devices split`, the variable that lists all GPUs
    for the communication library.
    """

    schema_: Literal["hvscale/run/2"] = "hvscale/run/2"
    state: RunState = "starting"
    command: list[str]
    np: Ranks
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
        """The requested variables; the value of a hidden one is "(hidden)"."""
        requests = self.launch.get("env", [])
        pairs = (str(request).partition("=") for request in (requests if isinstance(requests, list) else []))
        return {name: value if equals else HIDDEN for name, equals, value in pairs}

    @property
    def measured_library(self) -> Library:
        """The library that this run's figures belong to.

        It is `library` unless a rank reported another one. If there are several, `version` names
        them all.
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
    def period(self) -> tuple[datetime, datetime]:
        """The start and the end; the start twice if the end is unknown."""
        return self.started_at, self.ended_at or self.started_at

    @property
    def was_abandoned(self) -> bool:
        """Whether the run's hvscale process was killed, so that nothing recorded the run's end."""
        return self.state == "interrupted" and self.ended_at is None

    @property
    def early_end(self) -> str | None:
        """A sentence about a job that failed or was interrupted; None for others.

        ABANDONED is the sentence for a run whose hvscale was killed.
        """
        if self.state == "interrupted":
            return None if self.was_abandoned else "the job was interrupted: the figures are of what ran until then"
        if self.state != "failed":
            return None
        first = next((end for end in self.ranks if end.rank == self.failed_rank), None)
        if first is None:
            how = f"with exit status {self.exit_status}"
        elif first.signal:
            how = f"because rank {first.rank} was killed by {first.signal}"
        else:
            how = f"because of rank {first.rank}, exit status {first.exit_status}"
        return f"the job failed, {how}: the figures are of what ran until then"

    @property
    def library_difference(self) -> str | None:
        """A sentence that names `library` and those that ranks ran on; None if they agree.

        Also None if nothing was reported.
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
        """Create the folder with its sub-folders and lock it for this process.

        The lock ends with `at_work` or `unlock`. `continued`: the folder may already hold a run.
        Raises RequestError if it holds one otherwise, if another process or user has it, or if it
        cannot be written.
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
            if self.lock is None:
                check_unlocked(self.path)
            raise RequestError(f"{self.path} holds a run already: give another folder with --run")

    def make_subfolder(self, folder: Path) -> None:
        """Create a sub-folder. Raises RequestError if this fails or it exists and is not
        our own.
        """
        try:
            make_own_folder(folder)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def unlock(self) -> None:
        if self.lock is not None:
            self.lock.close()

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run in `path`. Raises RequestError if `path` is not a run's folder."""
        run = cls(path)
        try:
            if not path.is_dir():
                raise RequestError(f"{path} is not a folder: give the folder of a run")
            if not run.run_json.exists():
                raise RequestError(f"{path} is not the folder of a run: it holds no run.json")
            for folder in (run.hvprof, run.logs):
                if folder.exists():
                    next(folder.iterdir(), None)  # because a glob of an unreadable folder finds nothing
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}") from error
        return run

    def read(self) -> RunRecord:
        """run.json; a run whose hvscale process was killed on this machine is interrupted.

        Raises RequestError if run.json is truncated or not ours.
        """
        abandoned, text = is_abandoned(self.path), ""
        try:
            text = read_text(self.run_json)
            record = RunRecord.model_validate(parse_json(text))
            # Checked before and after, because its process may have ended normally, or another one
            # started, in between.
            if record.state in OPEN_STATES and abandoned and is_abandoned(self.path):
                record.state = "interrupted"
            return record
        except (OSError, ValueError) as error:
            if writer := other_version(RunRecord, text):
                raise RequestError(
                    f"{self.path} was written by {writer}: make the run again, or read it with that version"
                ) from error
            if not self.path.exists():
                raise RequestError(f"{self.path} does not exist any more: it was moved or removed") from error
            what = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise RequestError(
                f"{self.run_json} cannot be read ({what}): the run's other files are untouched"
            ) from error

    def begin(self, record: RunRecord) -> None:
        """The first `write`; also reserves the disk space for the last state."""
        try:
            with open_new(self.reserve) as stream:
                size = len(as_text(record)) + RESERVE_BYTES + RESERVE_BYTES_PER_RANK * record.np
                take_room(stream.fileno(), size)
            write_text(self.run_json, as_text(record))
        except OSError as error:
            self.reserve.unlink(missing_ok=True)
            raise cannot_write(self.path, error) from error

    def write(self, record: RunRecord) -> None:
        """Write run.json. Raises RequestError if the folder cannot be written or the disk
        is full.
        """
        try:
            write_text(self.run_json, as_text(record))
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.is_closed = record.state not in OPEN_STATES

    def close(self, record: RunRecord, error: BaseException) -> None:
        """Write the last state and the reason for a run that `error` ended, even on a full disk."""
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
        """Context: the run belongs to this process.

        On an error, write the last state if it is missing; then unlock the folder.
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
    """Reserve `size` bytes for a new file, if the file system can.

    Raises OSError if the disk is full.
    """
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EINVAL):
            raise


def as_text(record: RunRecord) -> str:
    return to_json(record) + "\n"


def ended_by(error: BaseException) -> tuple[RunState, int]:
    """The last state and exit status of a run that an error ended."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 128 + signal.SIGINT
    if isinstance(error, SavedError):
        return "interrupted", error.exit_status
    return "failed", error.exit_status if isinstance(error, HvscaleError) else 1


def cannot_write(path: Path, error: OSError) -> RequestError:
    return RequestError(
        f"cannot write the run folder {path}: {error.strerror}. Choose another with --run, or make room"
    )


def is_own_command(command: Sequence[str], name: str) -> bool:
    """Whether a command is `hvscale NAME`, with or without a path."""
    return [*(Path(word).name for word in command[:1]), *command[1:2]] == ["hvscale", name]


RUNS = Path("runs")  # in the working directory


def default_run_path(command: list[str], root: Path = RUNS) -> Path:
    """Create the new folder `runs/<UTC time>-<name>`; the name comes from the command's words.

    It is unique among processes, and removed when this process ends if it is still empty. Raises
    RequestError if it cannot be created.
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
    """Remove a run's folder, and its parent, if empty."""
    with suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()
