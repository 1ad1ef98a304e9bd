"""SIGTERM and SIGUSR1 ask training to save and stop: what schedulers send before they take a machine away."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def noting_stop_signals() -> Iterator[list[int]]:
    """Within, they are noted in the list instead of ending this process."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    before = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
