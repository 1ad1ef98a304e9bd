"""Runs a program in each node of a job, before the job starts or after it has ended."""

import os
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from hvscale.launch.job import Node
from hvscale.launch.supervision import interrupts, programs

AT_ONCE = 64  # agents; each takes three descriptors
POLL_SECONDS = 0.05


@dataclass
class NodeProgram:
    """A program for a node and, once it has ended, its outcome.

    `status`: its exit status; None if it was killed because it wrote nothing for `answer_seconds`.
    """

    node: Node
    words: list[str]
    status: int | None = None
    stdout: str = ""
    stderr: str = ""

    @property
    def problem(self) -> str | None:
        """Why it failed; None if it did not."""
        if self.status is None:
            return f"it has not answered within {programs.answer_seconds():g} s"
        return (self.stderr.strip().splitlines() or [f"status {self.status}"])[-1] if self.status else None


class _Started:
    """A program that runs, and when it last wrote something."""

    def __init__(self, program: NodeProgram) -> None:
        self.program = program
        # Files, not pipes: nothing has to read them while the program runs.
        self.output, self.errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - in close()
        self.process = subprocess.Popen(
            program.node.agent_command(program.words),
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.errors,
            start_new_session=True,  # Ctrl-C must not interrupt it
        )
        self.written, self.last_written_at = 0, time.monotonic()

    def has_ended(self) -> bool:
        """Whether it has ended, or has been silent for too long."""
        size = os.fstat(self.output.fileno()).st_size
        if size > self.written:
            self.written, self.last_written_at = size, time.monotonic()
            self.program.stdout = _content(self.output)
        self.program.status = self.process.poll()
        silent = time.monotonic() - self.last_written_at > programs.answer_seconds()
        return self.program.status is not None or silent

    def close(self) -> None:
        """End it, if it still runs, and keep what it has written."""
        if self.output.closed:
            return
        programs.end_session(self.process)
        self.program.stdout, self.program.stderr = _content(self.output), _content(self.errors)
        self.output.close()
        self.errors.close()


def _content(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def run_on_nodes(all_programs: Sequence[NodeProgram], watch: Callable[[], None] = lambda: None) -> None:
    """Run the programs, up to AT_ONCE at a time, and note how each ended.

    `watch` is called about 20 times a second; `stdout` is up to date then. An interrupted wait
    kills them all.
    """
    waiting = deque(all_programs)
    running: list[_Started] = []
    with ExitStack() as stack:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                with interrupts.defer_interrupts():
                    running.append(_Started(waiting.popleft()))
                    stack.callback(running[-1].close)
            for one in list(running):
                if one.has_ended():
                    one.close()
                    running.remove(one)
            watch()
            if running:
                time.sleep(POLL_SECONDS)
