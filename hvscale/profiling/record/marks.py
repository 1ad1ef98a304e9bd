"""Marking steps from inside a rank."""

import ctypes
from collections.abc import Callable
from functools import cache


def step() -> None:
    """Marks the begin of a step in this rank's profile; does nothing in a process that is not being recorded."""
    _marker()()


@cache
def _marker() -> Callable[[], object]:
    try:
        # The process itself: the library is there when it was preloaded.
        marker = ctypes.CDLL(None).hvprof_step
    except (OSError, AttributeError):
        return lambda: None
    marker.restype = None
    marker.argtypes = []
    found: Callable[[], object] = marker
    return found
