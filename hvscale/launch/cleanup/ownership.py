"""Who owns what a run makes outside its folder: labels, and locks between processes of one user."""

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
    """`controller` is `<process id>@<its start, clock ticks since boot>`: an id alone is given
    again to others.
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
        """The labels as Docker wants them to find what carries them."""
        return [f"{name}={value}" for name, value in self.labels.items()]

    @property
    def id(self) -> str:
        """Eight characters that name the run where a path is too long."""
        return hashlib.sha256(os.fsencode(self.run)).hexdigest()[:8]

    def name(self, part: object) -> str:
        return f"{PREFIX}-{self.id}-{part}"

    @property
    def is_live(self) -> bool:
        """Whether the controller that made it still runs."""
        pid, _, start = self.controller.partition("@")
        return pid.isdigit() and start_of(int(pid)) == start


def start_of(pid: int) -> str | None:
    """When a process of this machine was started, in clock ticks since boot; None when there is
    none.
    """
    try:
        # The program's name, in parentheses, may hold spaces: the fields are counted behind it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02


@contextmanager
def machine_lock(name: str) -> Iterator[None]:
    """Hold the lock `name` within. It is free again when its holder ends, however it ends.

    Raises RequestError when another process holds it for a minute, or when its file is somebody
    else's.
    """
    path = lock_file(name)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RequestError(f"cannot open the lock {path}: {error.strerror}; remove the file") from error
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise RequestError(f"the lock {path} belongs to another user: remove the file")
        acquire(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def lock_file(name: str) -> Path:
    """In a folder that only root may write for root; others share one, where a file of their own
    number is theirs.
    """
    if os.geteuid() == 0:
        return Path("/run") / f"hvscale-{name}.lock"
    return Path("/run/lock") / f"hvscale-{os.geteuid()}-{name}.lock"


def acquire(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RequestError(
                    f"another hvscale has held {path} for {WAIT_SECONDS:g} s: end it (`fuser {path}` names it), then try again"
                ) from None
            time.sleep(POLL_SECONDS)
        else:
            return
