"""Runs a long command with its output in a log file and the elapsed time on the terminal."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from messages import SetUpError, say

GUARD = Path(__file__).resolve().with_name("guard.py")
SECONDS_BEFORE_ELAPSED_LINE = 2
NETWORK_FAILURE = re.compile(
    r"client error \(Connect\)|dns error|Connection refused|Network is unreachable|Temporary failure in name resolution"
    r"|certificate verify failed|NewConnectionError|ConnectTimeout|ProxyError|error sending request|Connection to \S+ timed out"
    r"|\(from versions: none\)",
    re.IGNORECASE,
)
ERROR_LINE = re.compile(r"\berror\b|\bfatal\b|undefined reference|No space left", re.IGNORECASE)


def run_logged(what: str, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> None:
    """Run a command with its output in `log`; on a terminal show the elapsed time.

    Raises SetUpError, which names the log and its last error line, when the command ends with a
    status other than zero. Whatever ends this function early ends the command and all that it
    started, too.
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
            status = wait_showing_elapsed_time(process, what)
        finally:
            end_process_group(process)
    if status != 0:
        raise explained_failure(what, log)


def wait_showing_elapsed_time(process: "subprocess.Popen[bytes]", what: str) -> int:
    """Return the exit status; rewrite one line with minutes and seconds when standard error is a
    terminal.
    """
    start = time.monotonic()
    shown = False
    while True:
        try:
            status = process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            elapsed = int(time.monotonic() - start)
            if sys.stderr.isatty() and elapsed >= SECONDS_BEFORE_ELAPSED_LINE:
                print(f"\r  {what}: {elapsed // 60}:{elapsed % 60:02d}", end="", file=sys.stderr, flush=True)
                shown = True
        else:
            if shown:
                print(file=sys.stderr)
            return status


def end_process_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of the group and wait until it is gone, so that nothing writes into a
    folder being removed.
    """
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            break
        process.poll()
        time.sleep(0.02)
    if process.stdin:
        process.stdin.close()
    process.wait()


def explained_failure(what: str, log: Path) -> SetUpError:
    """Say in one line why a command failed, from the text that it left in its log."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    unreachable = next((line for line in lines if NETWORK_FAILURE.search(line)), None)
    if unreachable:
        return SetUpError(
            f"no network: the package registry could not be reached while {what}. Connect, or name a proxy, a mirror or a "
            f"certificate (HTTPS_PROXY, UV_DEFAULT_INDEX, SSL_CERT_FILE): {unreachable[:160]} (log: {log})"
        )
    # The first error is the cause; what follows it is mostly make and pip passing it on.
    cause = next((i for i, line in enumerate(lines) if ERROR_LINE.search(line)), len(lines) - 1)
    # CMake and Python tell the place first and end it with a colon, the reason stands below.
    words = lines[cause : cause + 2] if lines and lines[cause].endswith(":") else lines[cause : cause + 1]
    return SetUpError(f"failed while {what}: {' '.join(words)[:300] or 'it printed nothing'} (log: {log})")


def say_then_run(what: str, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> None:
    """Announce a step that may take long, run it, and say how long it took when that was
    noticeable.
    """
    say(what)
    start = time.monotonic()
    run_logged(what, command, log, environment, folder)
    elapsed = time.monotonic() - start
    if elapsed >= SECONDS_BEFORE_ELAPSED_LINE:
        say(f"done in {elapsed:.0f} s")
