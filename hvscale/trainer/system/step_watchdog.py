"""Ends a job that makes no progress, for instance because one rank is stuck.

Each rank first writes its Python stacks to stderr.
"""

import contextlib
import faulthandler
import os
import threading
import time

from hvscale.core.errors import EXIT_RANK_FAILED
from hvscale.trainer.trainer import Hook, Trainer

# The first rank to exit takes the others down with it; by then each must have written its stacks.
STACK_DUMP_SECONDS = 5.0
# The watchdog looks once a second, or ten times within a timeout below ten seconds.
TICK = 0.1


class StepWatchdog(Hook):
    """Exits the process with status 3 if `trainer.heartbeat` stands still for `timeout_seconds`."""

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.ended = threading.Event()

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        threading.Thread(target=self._watch, name="hvscale-watchdog", daemon=True).start()

    def on_end(self) -> None:
        self.ended.set()

    def _watch(self) -> None:
        tick = min(1.0, self.timeout_seconds * TICK)
        heartbeat, waited, written = self.trainer.heartbeat, 0.0, False
        before = time.monotonic()
        while not self.ended.wait(tick):
            now = time.monotonic()
            suspended, before = now - before, now
            if suspended > self.timeout_seconds:
                _write_stacks(f"this process was suspended for {suspended:.0f} s and continues")
            if heartbeat != self.trainer.heartbeat:
                heartbeat, waited, written = self.trainer.heartbeat, 0.0, False
            # Counts ticks, not clock time: a job that a scheduler suspends and resumes is not
            # ended.
            waited += tick
            if waited > self.timeout_seconds and not written:
                _write_stacks(f"no step finished for {waited:.0f} s")
                written = True
            if waited > self.timeout_seconds + STACK_DUMP_SECONDS:
                _write(f"no step finished for {waited:.0f} s (--stall-timeout): the stacks are above")
                os._exit(EXIT_RANK_FAILED)


def _write_stacks(why: str) -> None:
    """Holds the interpreter's lock; faulthandler's own timer reads frames of running threads and
    may crash.
    """
    _write(f"{why}; stacks of its threads:")
    faulthandler.dump_traceback(file=2)


def _write(line: str) -> None:
    with contextlib.suppress(OSError):  # exit even if nobody reads stderr or the disk is full
        os.write(2, f"hvscale: {line}\n".encode())
