"""The processes of one job: found by the run they carry in their environment, ended without remainder."""

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

RUN_VARIABLE = "HVSCALE_RUN"
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 5.0


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Within, orphans of the job become this process's children, so that a rank which leaves its parent is still found."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def of_run(run: Path) -> list[psutil.Process]:
    """Our descendants that belong to the run; a zombie counts as ended and is reaped."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                if process.ppid() == os.getpid():
                    process.wait(timeout=0)
            elif process.environ().get(RUN_VARIABLE) == str(run):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.TimeoutExpired, psutil.AccessDenied):
            continue
    return found


def kill_all(run: Path) -> list[psutil.Process]:
    """SIGKILL to every process of the run until none is left, at most `KILL_SECONDS`; gives those that were alive at first."""
    at_first = alive = of_run(run)
    deadline = time.monotonic() + KILL_SECONDS
    while alive and time.monotonic() < deadline:
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(alive, timeout=0.2)
        alive = of_run(run)
    return at_first
