"""Messages and errors of the set-up, and long commands whose output goes to a log file."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

GUARD = Path(__file__).resolve().with_name("guard.py")
SECONDS_BEFORE_ELAPSED_LINE = 2
NETWORK_FAILURE = re.compile(
    r"client error \(Connect\)|dns error|Connection refused|Network is unreachable|Temporary failure in name resolution"
    r"|certificate verify failed|NewConnectionError|ConnectTimeout|ProxyError|error sending request|Connection to \S+ timed out"
    r"|\(from versions: none\)",
    re.IGNORECASE,
)
DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
FREE_SPACE = "free some, or set HVSCALE_CACHE, UV_CACHE_DIR or TMPDIR to a folder on another disk"
ERROR_LINE = re.compile(r"\berror\b|\bfatal\b|undefined reference", re.IGNORECASE)


class SetUpError(Exception):
    """Printed as one line without a traceback: what is wrong and how to fix it."""


class InterruptedBySignal(BaseException):
    """Raised on SIGINT, SIGTERM or SIGHUP, so that each step cleans up on the way out."""


def say(text: str) -> None:
    """Print one line to stderr."""
    print(f"hvscale set-up: {text}", file=sys.stderr, flush=True)


def run_logged(task: str, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> None:
    """Run a command with its output in `log`; show the elapsed time on a terminal.

    An exception in this function also kills the command and its child processes. Raises SetUpError
    with the log and its first error line if the command fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the group
        )
        try:
            status = wait_showing_elapsed_time(process, task)
        finally:
            end_process_group(process)
    if status != 0:
        raise failure(task, log)


def wait_showing_elapsed_time(process: "subprocess.Popen[bytes]", task: str) -> int:
    """Wait for the process and return its exit status; show the elapsed time on a terminal."""
    start = time.monotonic()
    shown = False
    while True:
        try:
            status = process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            elapsed = int(time.monotonic() - start)
            if sys.stderr.isatty() and elapsed >= SECONDS_BEFORE_ELAPSED_LINE:
                print(f"\r  {task}: {elapsed // 60}:{elapsed % 60:02d}", end="", file=sys.stderr, flush=True)
                shown = True
        else:
            if shown:
                print(file=sys.stderr)
            return status


def end_process_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the rest of the process group and wait, so that nothing writes to a removed folder."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            break
        reap(process, os.WNOHANG)
        time.sleep(0.02)
    if process.stdin:
        process.stdin.close()
    reap(process, 0)


def reap(process: "subprocess.Popen[bytes]", options: int) -> None:
    """Like Popen.wait, whose lock stays taken if a signal's exception ends it at a bad moment."""
    if process.returncode is None:
        with suppress(ChildProcessError):
            pid, status = os.waitpid(process.pid, options)
            if pid == process.pid:
                process.returncode = os.waitstatus_to_exitcode(status)


def failure(task: str, log: Path) -> SetUpError:
    """Make an error of one line from the log of a failed command."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    unreachable = next((line for line in lines if NETWORK_FAILURE.search(line)), None)
    if unreachable:
        return SetUpError(
            f"no network: cannot reach the package registry while {task}. Connect, or set a proxy, a mirror or a certificate "
            f"(HTTPS_PROXY, UV_DEFAULT_INDEX, SSL_CERT_FILE): {unreachable[:160]} (log: {log})"
        )
    full = next((line for line in lines if DISK_FULL.search(line)), None)
    if full:
        return SetUpError(f"no space left while {task}: {FREE_SPACE}: {full[:160]} (log: {log})")
    # The first error is the cause; make and pip mostly repeat it.
    cause = next((i for i, line in enumerate(lines) if ERROR_LINE.search(line)), len(lines) - 1)
    # CMake and Python print the place and a colon first, and the reason on the next line.
    words = lines[cause : cause + 2] if lines and lines[cause].endswith(":") else lines[cause : cause + 1]
    return SetUpError(f"failed while {task}: {' '.join(words)[:300] or 'it printed nothing'} (log: {log})")


def say_then_run(task: str, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> None:
    """Announce a long step, run it, and print how long it took."""
    say(task)
    start = time.monotonic()
    run_logged(task, command, log, environment, folder)
    elapsed = time.monotonic() - start
    if elapsed >= SECONDS_BEFORE_ELAPSED_LINE:
        say(f"done in {elapsed:.0f} s")
