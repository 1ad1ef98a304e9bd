"""Repeats a Ctrl-C that Python lost.

Python runs a signal's handler between any two instructions, also in `__del__` and in the callbacks
of weak references, which swallow exceptions: KeyboardInterrupt would only be printed there.
"""

import signal
import sys
import threading
import time

REPEAT_SECONDS = 0.01  # until then the main thread has usually left the callback


def repeat_lost_interrupts() -> None:
    """Raise KeyboardInterrupt in the main thread again if an object's end swallowed it."""
    sys.unraisablehook = _repeat


def _repeat(swallowed: "sys.UnraisableHookArgs") -> None:
    if swallowed.exc_type is KeyboardInterrupt:
        threading.Thread(target=_interrupt, args=(threading.get_ident(),)).start()
    else:
        sys.__unraisablehook__(swallowed)


def _interrupt(main_thread: int) -> None:
    """Send SIGINT when `_repeat` has returned: Python would drop a KeyboardInterrupt there, too."""
    time.sleep(REPEAT_SECONDS)
    while _runs_repeat(main_thread):  # it takes longer on a busy machine
        time.sleep(REPEAT_SECONDS)
    signal.pthread_kill(main_thread, signal.SIGINT)


def _runs_repeat(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not _repeat.__code__:
        frame = frame.f_back
    return frame is not None
