"""Repeats a Ctrl-C that Python lost.

Python runs a signal's handler between any two instructions, also in `__del__` and in the callbacks
of weak references, which swallow exceptions: KeyboardInterrupt would only be printed there.
"""

import signal
import sys
import threading

REPEAT_SECONDS = 0.01  # until then the main thread has left the callback


def repeat_lost_interrupts() -> None:
    """Raise KeyboardInterrupt in the main thread again if an object's end swallowed it."""
    sys.unraisablehook = _repeat


def _repeat(swallowed: "sys.UnraisableHookArgs") -> None:
    if swallowed.exc_type is KeyboardInterrupt:
        main_thread = threading.main_thread().ident
        threading.Timer(REPEAT_SECONDS, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(swallowed)
