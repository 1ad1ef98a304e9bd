"""Records signals that ask a launch to end, and interrupts waits while the job starts."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptedWaitError(BaseException):
    """A signal interrupted a wait.

    Not an Exception, so that no handler takes it for a failure of the operation.
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
    """Context: SIGINT, SIGTERM and SIGHUP are appended to the list and do not end this process.

    Under nohup, SIGHUP stays ignored.
    """
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        _note_signal()
        if _is_interruptible:
            disable_interrupts()  # a second signal must not interrupt the cleanup
            raise InterruptedWaitError

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            # None: a preloaded library's handler (UCX's for SIGHUP), which Python cannot set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Context: the first caught signal raises InterruptedWaitError in the main thread."""
    _set_interruptible(True)
    try:
        yield
    finally:
        disable_interrupts()


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Context: a signal raises InterruptedWaitError only when the block ends.

    For code that starts something and records it.
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
    """From now on only record signals, so that they do not interrupt cleanup."""
    _set_interruptible(False)
