"""Labels and locks for what a run creates outside its folder."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvscale.core.errors import RequestError

RUN = "hvscale.run"
CONTROLLER = "hvscale.controller"
PREFIX = "hvscale"


@dataclass(frozen=True)
class RunLabel:
    """The run and its controller process, on everything that the run creates outside its folder.

    `controller` is `<process id>@<start time in clock ticks since boot>`, because ids are reused.
    """

    run: str
    controller: str

    @classmethod
    def of(cls, run: Path) -> "RunLabel":
        return cls(str(run), f"{os.getpid()}@{start_of(os.getpid())}")

    @classmethod
    def read(cls, labels: Mapping[str, str]) -> "RunLabel":
        return cls(labels.get(RUN, "an unknown run"), labels.get(CONTROLLER, ""))

    @property
    def labels(self) -> dict[str, str]:
        return {RUN: self.run, CONTROLLER: self.controller}

    @property
    def filters(self) -> list[str]:
        """The labels in the form of Docker's filters."""
        return [f"{name}={value}" for name, value in self.labels.items()]

    @property
    def id(self) -> str:
        """Eight characters that identify the run, for names that cannot hold a path."""
        return hashlib.sha256(os.fsencode(self.run)).hexdigest()[:8]

    def name(self, part: object) -> str:
        return f"{PREFIX}-{self.id}-{part}"

    @property
    def is_live(self) -> bool:
        """Whether the controller still runs."""
        pid, _, start = self.controller.partition("@")
        return pid.isdigit() and start_of(int(pid)) == start


def start_of(pid: int) -> str | None:
    """A process's start time in clock ticks since boot; None if it does not exist."""
    try:
        # The program's name, in parentheses, may contain spaces, so count the fields after it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02


@contextmanager
def machine_lock(name: str) -> Iterator[None]:
    """Context: hold the lock `name` among all processes of this machine's user.

    It protects what a machine has once: its routes and its Docker swarm. It is released when its
    holder ends in any way. Raises RequestError if another process holds it for a minute, or if its
    file belongs to another user.
    """
    path = lock_file(name)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RequestError(f"cannot open the lock file {path}: {error.strerror}; remove it") from error
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise RequestError(f"the lock file {path} belongs to another user; remove it")
        acquire(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def lock_file(name: str) -> Path:
    """The lock's path: root's in a folder that only root can write to, others' in a shared folder.

    Names in the shared folder contain the user's id. Some systems share /tmp only.
    """
    if os.geteuid() == 0:
        return Path("/run") / f"hvscale-{name}.lock"
    shared = Path("/run/lock") if os.access("/run/lock", os.W_OK) else Path("/tmp")  # noqa: S108 - not a secret name
    return shared / f"hvscale-{os.geteuid()}-{name}.lock"


def acquire(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RequestError(
                    f"another hvscale process has held {path} for {WAIT_SECONDS:g} s; end it (`fuser {path}` shows it) and retry"
                ) from None
            time.sleep(POLL_SECONDS)
        else:
            return
