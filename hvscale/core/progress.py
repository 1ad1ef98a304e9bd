"""Where long work reports its progress, and where the command line hears of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

Observer = Callable[[str, float], None]
_OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Calls `observer` with what is done and the fraction that is done, from 0 to 1."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


class Progress:
    """The progress of one piece of work, in any unit, for the observer; silent without one."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0

    def advance(self, amount: int) -> None:
        self.done += amount
        observer = _OBSERVER.get()
        if observer is not None:
            observer(self.what, min(1.0, self.done / max(self.total, 1)))

    def __enter__(self) -> Self:
        self.advance(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.advance(self.total - self.done)
