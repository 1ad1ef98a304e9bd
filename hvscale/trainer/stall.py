"""A step that does not end, because another rank is stuck, ends the job: each rank leaves its Python stacks on stderr first."""

import faulthandler
import os
import sys
import threading
import time
from types import TracebackType

from hvscale.errors import EXIT_RANK_FAILED

# The first rank to leave takes the others down with it: each is to have written its stacks by then.
LAST_WORDS_SECONDS = 5.0
# A process that was stopped and goes on finds all its time up at once: here faulthandler's thread gets to write first.
WRITING_SECONDS = 1.0
# faulthandler starts a thread each time it is armed.
ARM_EVERY = 0.1


class StallWatch:
    """Within, `moved` is to be called after each step; when it is not for `seconds`, the process ends with status 3. 0: it may take for ever."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ended = threading.Event()
        self.armed = self.last = 0.0

    def moved(self) -> None:
        self.last = time.monotonic()
        if self.seconds and self.last - self.armed >= min(1.0, self.seconds * ARM_EVERY):
            # In C, so that it also speaks when the interpreter's lock is held by what is stuck.
            faulthandler.dump_traceback_later(self.seconds, file=sys.stderr)
            self.armed = self.last

    def _watch(self) -> None:
        while not self.ended.wait(min(1.0, self.seconds * ARM_EVERY)):
            waited = time.monotonic() - self.last
            if waited > self.seconds + LAST_WORDS_SECONDS:
                time.sleep(WRITING_SECONDS)
                os.write(2, f"hvscale: no step has ended for {waited:.0f} s: stacks above; --stall-timeout\n".encode())
                os._exit(EXIT_RANK_FAILED)

    def __enter__(self) -> "StallWatch":
        self.moved()
        if self.seconds:
            threading.Thread(target=self._watch, name="hvscale-stall", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        if self.seconds:
            faulthandler.cancel_dump_traceback_later()
