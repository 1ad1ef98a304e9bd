"""The processes of one job: found by the run they carry in their environment, ended without
remainder.
"""

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

RUN_VARIABLE = "HVSCALE_RUN"
NP_VARIABLE = "HVSCALE_NP"
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 5.0
KILL_POLL_SECONDS = 0.02


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Within, orphans of the job become this process's children, so that a rank which leaves its
    parent is still found.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def of_run(run: Path) -> list[psutil.Process]:
    """Our living descendants that carry the run in their environment."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(RUN_VARIABLE) == str(run):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def kill_all(run: Path) -> int:
    """SIGKILL to every process of the run until none is left, at most `KILL_SECONDS`; gives how
    many were alive at first.
    """
    alive = of_run(run)
    at_first = len(alive)
    deadline = time.monotonic() + KILL_SECONDS
    while alive and time.monotonic() < deadline:
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(KILL_POLL_SECONDS)
        alive = of_run(run)
    return at_first


def reap_orphans() -> None:
    """Collect the adopted processes that have ended. To be called once every process that somebody
    waits for was waited for.
    """
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
