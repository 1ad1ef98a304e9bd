"""Signals that ask a launch to end: they are recorded, and end the waits of its start."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptedWaitError(BaseException):
    """A signal has ended a wait. Not an Exception, so that nothing mistakes it for a failure of
    what was waited for.
    """


_waits_end = False
_signals_noted = 0


def _set_waits_end(value: bool) -> None:
    global _waits_end
    _waits_end = value


def _note_signal() -> None:
    global _signals_noted
    _signals_noted += 1


@contextmanager
def catching_signals() -> Iterator[list[int]]:
    """Within, SIGINT, SIGTERM and SIGHUP are noted in the list instead of ending this process;
    under nohup, SIGHUP stays ignored.
    """
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        _note_signal()
        if _waits_end:
            only_note()  # a second one must not reach what cleans up after the first
            raise InterruptedWaitError

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_waits() -> Iterator[None]:
    """Within, the first signal that `catching_signals` catches raises InterruptedWaitError in the
    main thread.
    """
    _set_waits_end(True)
    try:
        yield
    finally:
        only_note()


@contextmanager
def held_back() -> Iterator[None]:
    """Within, a signal ends no wait; it does so when the block is left. For code that starts
    something and records that it did.
    """
    ended_waits, noted = _waits_end, _signals_noted
    _set_waits_end(False)
    try:
        yield
    finally:
        _set_waits_end(ended_waits)
    if ended_waits and _signals_noted > noted:
        only_note()
        raise InterruptedWaitError


def only_note() -> None:
    """From here on signals are recorded and end no wait, so that cleaning up is not interrupted."""
    _set_waits_end(False)
