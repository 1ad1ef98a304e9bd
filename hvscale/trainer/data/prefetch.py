"""Prepares batches ahead in threads: decoding and resizing release the interpreter's lock."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Prefetch(Generic[Batch]):
    """`get(number)` for consecutive numbers. Threads change only when a batch is made, not what it
    contains.
    """

    def __init__(self, make: Callable[[int], Batch], workers: int) -> None:
        """`make(number)` makes a batch. With 0 workers it is called in `get`."""
        self.make, self.workers = make, workers
        self.pool = ThreadPoolExecutor(workers, "hvscale-data") if workers else None
        self.coming: dict[int, Future[Batch]] = {}

    def get(self, number: int) -> Batch:
        """Raises what `make` raises."""
        if self.pool is None:
            return self.make(number)
        for ahead in range(number, number + 1 + self.workers):
            if ahead not in self.coming:
                self.coming[ahead] = self.pool.submit(self.make, ahead)
        return self.coming.pop(number).result()

    def __enter__(self) -> "Prefetch[Batch]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
