"""Ends a job that makes no progress, for instance because one rank hangs.

Each rank first writes its Python stacks to stderr.
"""

import contextlib
import faulthandler
import os
import threading
import time

from hvscale.core.errors import EXIT_RANK_FAILED
from hvscale.trainer.trainer import Hook, Trainer

# The first rank to exit ends the others, so each gets this time to write its stacks.
STACK_DUMP_SECONDS = 5.0
# The watchdog polls once a second, or ten times within a timeout below ten seconds.
POLL_FRACTION = 0.1


class StepWatchdog(Hook):
    """Exits with status 3 if `trainer.heartbeat` does not change for `timeout_seconds`."""

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.ended = threading.Event()

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        self.thread = threading.Thread(target=self._watch, name="hvscale-watchdog", daemon=True)
        self.thread.start()

    def on_end(self) -> None:
        self.ended.set()
        # A thread that ended last would free the model, and PyTorch aborts if the interpreter ends
        # meanwhile. The limit is for a thread that cannot write its stacks.
        self.thread.join(STACK_DUMP_SECONDS)

    def _watch(self) -> None:
        poll_seconds = min(1.0, self.timeout_seconds * POLL_FRACTION)
        heartbeat, waited, written = self.trainer.heartbeat, 0.0, False
        before = time.monotonic()
        while not self.ended.wait(poll_seconds):
            now = time.monotonic()
            suspended, before = now - before, now
            if suspended > self.timeout_seconds:
                _write_stacks(f"this process was suspended for {suspended:.0f} s and continues")
            if heartbeat != self.trainer.heartbeat:
                heartbeat, waited, written = self.trainer.heartbeat, 0.0, False
            # Counts polls, not clock time, so that jobs suspended by a scheduler are not ended.
            waited += poll_seconds
            if waited > self.timeout_seconds and not written:
                _write_stacks(f"no step finished for {waited:.0f} s")
                written = True
            if waited > self.timeout_seconds + STACK_DUMP_SECONDS:
                _write(f"no step finished for {waited:.0f} s (--stall-timeout): the stacks are above")
                os._exit(EXIT_RANK_FAILED)


def _write_stacks(why: str) -> None:
    """Write all threads' stacks, holding the interpreter's lock.

    faulthandler's own timer does not hold it, and may crash while it reads running threads.
    """
    _write(f"{why}; stacks of its threads:")
    faulthandler.dump_traceback(file=2)


def _write(line: str) -> None:
    with contextlib.suppress(OSError):  # exit even if stderr is closed or the disk is full
        os.write(2, f"hvscale: {line}\n".encode())
