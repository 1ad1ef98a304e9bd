"""Locks between all processes of this machine's user, for what the whole machine has once: its
routes, its Docker swarm.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvscale.core.errors import RequestError

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
