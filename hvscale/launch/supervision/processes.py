"""Finds the processes of a job, by the run in their environment or by session, and kills them."""

import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RUN_VARIABLE = "HVSCALE_RUN"
NP_VARIABLE = "HVSCALE_NP"
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 5.0
KILL_POLL_SECONDS = 0.02


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Context: orphans of the job become this process's children, so that `of_run` finds them."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def of_run(run: Path, sessions: Collection[int] = ()) -> list[int]:
    """Our living descendants with this run in their environment, or in one of these sessions.

    `sessions`: those of the job's launchers. A program may start others with an environment of
    their own, such as by `env -i`.
    """
    variable = os.fsencode(f"{RUN_VARIABLE}={run}")
    return [
        pid
        for pid in descendants(os.getpid())
        if variable in environment_of(pid) or (sessions and session_of(pid) in sessions)
    ]


def session_of(pid: int) -> int | None:
    """The session of a process; None if it has ended, even if nobody has waited for it yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, _parent, _group, session, *_ = stat.rpartition(b")")[2].split()
    return None if state in (b"Z", b"X") else int(session)


def environment_of(pid: int) -> list[bytes]:
    """The variables that a process started with; none if it has ended or is another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def descendants(pid: int) -> Iterator[int]:
    """The children of a process, their children and so on.

    The kernel's lists of children are read, because a look at every process of the machine takes
    6 ms. A list can lack a process while another child ends: look again until nothing is found.
    """
    if not Path("/proc/thread-self/children").exists():  # a kernel without CONFIG_PROC_CHILDREN
        import psutil

        yield from (process.pid for process in psutil.Process(pid).children(recursive=True))
        return
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, listed.read_text().split()):
                yield child
                yield from descendants(child)


def kill_all(run: Path, sessions: Collection[int] = ()) -> int:
    """Send SIGKILL to the run's processes until none is left, for at most `KILL_SECONDS`.

    `sessions`: as for `of_run`. Returns how many were alive at first.
    """
    alive = of_run(run, sessions) or of_run(run, sessions)
    at_first = len(alive)
    deadline = time.monotonic() + KILL_SECONDS
    while alive and time.monotonic() < deadline:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILL_POLL_SECONDS)
        alive = of_run(run, sessions) or of_run(run, sessions)
    return at_first


def reap_orphans() -> None:
    """Collect the adopted processes that have ended; call it after every other wait."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
