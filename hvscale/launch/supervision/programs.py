"""Runs system programs and calls, several at a time, within time limits that a site can change.

If a program fails, the error is one line with its name and the cause.
"""

import math
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, TypeVar

from hvscale.core.errors import RequestError
from hvscale.launch.supervision import interrupts

TOOL_SECONDS = 60


def require(program: str, package: str, purpose: str) -> str:
    """The path of a program. Raises RequestError, with its Debian package, if it is not in PATH."""
    # Debian installs administration programs in folders that a user's PATH may not have.
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if found is None:
        raise RequestError(
            f"{purpose} needs {program}, which is not in PATH: install it (Debian, Ubuntu: apt install {package})"
        )
    return found


def call(words: Sequence[str]) -> str:
    """Run a program and return its stdout.

    Raises RequestError with the last line of its stderr if it fails.
    """
    try:
        (done,) = run_all([words], TOOL_SECONDS)
    except OSError as error:
        raise RequestError(f"{words[0]} cannot be run: {error}") from error
    if done is None:
        raise RequestError(f"{words[0]} cannot be run: {subprocess.TimeoutExpired(words, TOOL_SECONDS)}")
    if done.returncode:
        message = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise RequestError(f"`{' '.join(words)}` failed: {message}")
    return done.stdout


# With 128 ranks on two busy cores, the first starts 0.1 to 1.7 s after the launcher.
FIRST_RANK_SECONDS = 60.0
# Launchers start an agent for each node; ssh, `docker exec` and srun each take up to a second on a
# busy machine.
FIRST_RANK_SECONDS_PER_NODE = 2.0
FIRST_RANK_VARIABLE = "HVSCALE_FIRST_RANK_TIMEOUT"
ANSWER_SECONDS = 60.0
ANSWER_VARIABLE = "HVSCALE_ANSWER_TIMEOUT"


def first_rank_seconds(remote_nodes: int) -> float:
    """The time limit for a launcher to start its first rank.

    Raises RequestError if its variable is not a number of seconds.
    """
    return read_seconds(FIRST_RANK_VARIABLE, FIRST_RANK_SECONDS + FIRST_RANK_SECONDS_PER_NODE * remote_nodes)


def answer_seconds() -> float:
    """The time limit for a host, the Docker daemon or Slurm to answer.

    Raises RequestError if its variable is not a number of seconds.
    """
    return read_seconds(ANSWER_VARIABLE, ANSWER_SECONDS)


def check_limits() -> None:
    """Raises RequestError if one of the variables is not a number of seconds."""
    first_rank_seconds(0)
    answer_seconds()


def read_seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise RequestError(
            f"{variable}={text}: not a valid number of seconds; use for example {variable}=120, or unset it"
        )
    return value


Item = TypeVar("Item")
Result = TypeVar("Result")
AT_ONCE = 8
END_SECONDS = 5  # a killed program ends at once
SPARE_FILES = 128  # what else is opened meanwhile: mpirun takes about 90, and inherits the limit


def allow_open_files(count: int) -> None:
    """Raise the limit of open files if it does not allow `count` more.

    Raises RequestError if the hard limit does not either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = sum(1 for _ in Path("/proc/self/fd").iterdir()) + count + SPARE_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise RequestError(
            f"this job needs {needed} open files at a time, and the hard limit is {hard} (`ulimit -H -n`): use fewer "
            "ranks or nodes, or have an administrator raise the limit (nofile in limits.conf)"
        )
    # Not to the hard limit: some programs close every descriptor up to theirs.
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def run_all(
    commands: Sequence[Sequence[str]],
    seconds: float,
    stdin: int | IO[str] = subprocess.DEVNULL,
    grace_seconds: float = 0,
) -> list[subprocess.CompletedProcess[str] | None]:
    """Run programs at the same time; return how each ended, None for one killed after `seconds`.

    An interrupted wait kills them all, unless they end within `grace_seconds`: then it returns as
    if it had not been interrupted. Ctrl-C in the terminal does not reach them. Raises OSError if
    one cannot be started, and as `allow_open_files`.
    """
    allow_open_files(2 * len(commands))
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        started = []
        for words in commands:
            # Files, not pipes: a process that the program leaves running may keep a pipe open.
            files = [stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(2)]
            with interrupts.defer_interrupts():
                process = subprocess.Popen(words, stdin=stdin, stdout=files[0], stderr=files[1], start_new_session=True)
                stack.callback(end_session, process)
            started.append((process, files))
        try:
            return [ended(process, files, deadline) for process, files in started]
        except interrupts.InterruptedWaitError:
            if not grace_seconds:
                raise
            deadline = time.monotonic() + grace_seconds
            found = [ended(process, files, deadline) for process, files in started]
            if None in found:
                raise
            return found


def ask_all(commands: Sequence[Sequence[str]], seconds: float) -> list[subprocess.CompletedProcess[str] | None]:
    """`run_all` for programs that print: those that end well without output run once more.

    On a busy machine, podman sometimes loses the output of a short program in a container.
    """
    found = run_all(commands, seconds)
    silent = [number for number, one in enumerate(found) if one and one.returncode == 0 and not one.stdout.strip()]
    for number, again in zip(silent, run_all([commands[number] for number in silent], seconds), strict=True):
        found[number] = again
    return found


def ended(
    process: "subprocess.Popen[Any]", files: list[Any], deadline: float
) -> subprocess.CompletedProcess[str] | None:
    try:
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    for file in files:
        file.seek(0)
    stdout, stderr = (file.read() for file in files)
    return subprocess.CompletedProcess(process.args, status, stdout, stderr)


def end_session(process: "subprocess.Popen[Any]") -> None:
    """Send SIGKILL to a program that leads a session, and to its process group."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # If Ctrl-C broke off an earlier wait, Popen's lock may be taken: do not wait for ever.
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def start_thread(function: Callable[[], Result], result: "Future[Result]") -> None:
    """Call `function` in a thread; a signal that interrupts the wait for `result` does
    not stop it.
    """

    def work() -> None:
        try:
            result.set_result(function())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=work, daemon=True).start()


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Call `function` on each item, `AT_ONCE` at a time; raise the first item's error.

    The threads are daemons, so an interrupted wait does not wait for them.
    """
    waiting: SimpleQueue[tuple[Item, Future[Result]]] = SimpleQueue()
    results: list[Future[Result]] = []
    for item in items:
        results.append(Future())
        waiting.put((item, results[-1]))

    def work() -> None:
        with suppress(Empty):
            while True:
                item, result = waiting.get_nowait()
                try:
                    result.set_result(function(item))
                except Exception as error:
                    result.set_exception(error)

    for _ in range(min(AT_ONCE, len(items))):
        threading.Thread(target=work, daemon=True).start()
    return [result.result() for result in results]
