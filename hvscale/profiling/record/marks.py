"""Marks steps from inside a rank."""

import ctypes
from collections.abc import Callable
from functools import cache


def step() -> None:
    """Marks the start of a step in this rank's profile. Does nothing in a process that is not being
    recorded.
    """
    _marker()()


@cache
def _marker() -> Callable[[], object]:
    try:
        # The process itself, where the library is if it was preloaded.
        marker = ctypes.CDLL(None).hvprof_step
    except (OSError, AttributeError):
        return lambda: None
    marker.restype = None
    marker.argtypes = []
    found: Callable[[], object] = marker
    return found
