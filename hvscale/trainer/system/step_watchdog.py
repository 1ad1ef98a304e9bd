"""A step that does not end, because another rank is stuck, ends the job: each rank leaves its Python stacks on stderr first."""

import contextlib
import faulthandler
import os
import threading
import time
from types import TracebackType

from hvscale.core.errors import EXIT_RANK_FAILED

# The first rank to leave takes the others down with it: each is to have written its stacks by then.
LAST_WORDS_SECONDS = 5.0
# The watch looks once a second; ten times within a limit below ten seconds.
TICK = 0.1


class StallWatch:
    """Within, `moved` is to be called after each step; when it is not for `seconds`, the process ends with status 3. 0: it may take for ever."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.steps = 0
        self.ended = threading.Event()

    def moved(self) -> None:
        self.steps += 1

    def _watch(self) -> None:
        tick = min(1.0, self.seconds * TICK)
        steps, waited, written = self.steps, 0.0, False
        before = time.monotonic()
        while not self.ended.wait(tick):
            now = time.monotonic()
            still, before = now - before, now
            if still > self.seconds:
                _write_stacks(f"this process stood still for {still:.0f} s, and goes on")
            if steps != self.steps:
                steps, waited, written = self.steps, 0.0, False
            # In ticks, not by the clock: a scheduler that suspends a job and resumes it does not end it thereby.
            waited += tick
            if waited > self.seconds and not written:
                _write_stacks(f"no step has ended for {waited:.0f} s")
                written = True
            if waited > self.seconds + LAST_WORDS_SECONDS:
                _write(f"no step has ended for {waited:.0f} s: stacks above; --stall-timeout")
                os._exit(EXIT_RANK_FAILED)

    def __enter__(self) -> "StallWatch":
        if self.seconds:
            threading.Thread(target=self._watch, name="hvscale-stall", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()


def _write_stacks(why: str) -> None:
    """From a thread that holds the interpreter's lock: faulthandler's own timer reads the frames of running threads, and may crash on them."""
    _write(f"{why}; where its threads are:")
    faulthandler.dump_traceback(file=2)


def _write(line: str) -> None:
    with contextlib.suppress(OSError):  # the process is to end though nobody reads why, or the disk is full
        os.write(2, f"hvscale: {line}\n".encode())
