"""Signals that ask a launch to end: they are recorded, and end the waits of its start."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptedWaitError(BaseException):
    """A signal has ended a wait. Not an Exception, so that nothing mistakes it for a failure of
    what was waited for.
    """


_is_interruptible = False
_signal_count = 0


def _set_interruptible(value: bool) -> None:
    global _is_interruptible
    _is_interruptible = value


def _note_signal() -> None:
    global _signal_count
    _signal_count += 1


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Within, SIGINT, SIGTERM and SIGHUP are noted in the list instead of ending this process;
    under nohup, SIGHUP stays ignored.
    """
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        _note_signal()
        if _is_interruptible:
            disable_interrupts()  # a second one must not reach what cleans up after the first
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
def interruptible() -> Iterator[None]:
    """Within, the first signal that `catch_signals` catches raises InterruptedWaitError in the
    main thread.
    """
    _set_interruptible(True)
    try:
        yield
    finally:
        disable_interrupts()


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Within, a signal ends no wait; it does so when the block is left. For code that starts
    something and records that it did.
    """
    was_interruptible, noted = _is_interruptible, _signal_count
    _set_interruptible(False)
    try:
        yield
    finally:
        _set_interruptible(was_interruptible)
    if was_interruptible and _signal_count > noted:
        disable_interrupts()
        raise InterruptedWaitError


def disable_interrupts() -> None:
    """From here on signals are recorded and end no wait, so that cleaning up is not interrupted."""
    _set_interruptible(False)
