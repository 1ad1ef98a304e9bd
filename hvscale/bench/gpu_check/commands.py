"""Runs a step's commands, each with its output in two files, and ends what they leave."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvscale.core.errors import EXIT_RANK_FAILED, HvscaleError
from hvscale.core.files import read_text
from hvscale.launch.supervision import processes
from hvscale.launch.supervision.interrupts import defer_interrupts
from hvscale.launch.supervision.programs import end_session

LAST_LINES = 12
OUTPUT_BYTES = 64 << 20
# `hvscale launch` ends its ranks, which may have to leave a driver call first.
END_SECONDS = 10.0
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.05


class CommandFailedError(HvscaleError):
    """A command failed; `last_lines` are those of its output."""

    exit_status = EXIT_RANK_FAILED

    def __init__(self, message: str, last_lines: list[str]) -> None:
        super().__init__(message)
        self.last_lines = last_lines


class TimeLimitError(CommandFailedError):
    """The step's time is over."""


@dataclass(frozen=True)
class Finished:
    """A command that ended by itself."""

    status: int
    stdout: str
    stderr: str

    @property
    def last_lines(self) -> list[str]:
        return (self.stderr.strip() or self.stdout.strip()).splitlines()[-LAST_LINES:]


def run(
    words: Sequence[str],
    *,
    output: Path,
    deadline: float,
    statuses: Sequence[int] = (0,),
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Finished:
    """Run a command until it ends, at most until `deadline` of the monotonic clock.

    `output`: its stdout and stderr go to this path with .out and .err. `statuses`: the expected
    ones. Raises CommandFailedError for another status, TimeLimitError at the deadline. An
    interrupted wait ends it too.
    """
    files = [output.with_name(output.name + suffix) for suffix in (".out", ".err")]
    with files[0].open("wb") as stdout, files[1].open("wb") as stderr:
        try:
            with defer_interrupts():
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=environment,
                    cwd=folder,
                    start_new_session=True,
                )
        except OSError as error:
            raise CommandFailedError(f"{words[0]} cannot be started: {error.strerror}", []) from error
        try:
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(process)
    found = Finished(status or 0, *(read_text(file, OUTPUT_BYTES, errors="replace") for file in files))
    command = shlex.join([Path(words[0]).name, *words[1:]])
    if status is None:
        raise TimeLimitError(f"the step's time was over while this ran: {command}", found.last_lines)
    if status not in statuses:
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise CommandFailedError(f"this {ended}: {command}", found.last_lines)
    return found


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a command that still runs to end; kill its process group if it does not.

    `kill_descendants` finds what it leaves.
    """
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    end_session(process)


def kill_descendants(grace_seconds: float = 0) -> list[str]:
    """Kill every process that the commands left, and return their command lines.

    Those that end by themselves within `grace_seconds` do not count, such as helpers that end when
    they miss their parent. Needs `processes.adopt_orphans`, so that orphans are descendants of this
    process.
    """
    until = time.monotonic() + grace_seconds
    while time.monotonic() < until and list(processes.descendants(os.getpid())):
        time.sleep(POLL_SECONDS)
        processes.reap_orphans()
    found: dict[int, str] = {}
    deadline = time.monotonic() + processes.KILL_SECONDS
    while time.monotonic() < deadline:
        processes.reap_orphans()
        alive = list(processes.descendants(os.getpid()))
        if not alive:
            break
        for pid in alive:
            found.setdefault(pid, command_line(pid))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return [line for line in found.values() if line]


def command_line(pid: int) -> str:
    """The command line of a living process; empty for one that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""
