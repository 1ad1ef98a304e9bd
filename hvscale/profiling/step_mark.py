"""The mark of a step in a rank's profile. Standard library only, because users' ranks import it."""

import ctypes
from collections.abc import Callable
from functools import cache


def step() -> None:
    """Marks the start of a step in this rank's profile.

    Does nothing in a process that hvprof does not record, such as a rank under Gloo.
    """
    _step_marker()()


@cache
def _step_marker() -> Callable[[], object]:
    try:
        # A preloaded library's functions are visible in the process's own namespace.
        marker = ctypes.CDLL(None).hvprof_step
    except (OSError, AttributeError):
        return lambda: None
    marker.restype = None
    marker.argtypes = []
    found: Callable[[], object] = marker
    return found
