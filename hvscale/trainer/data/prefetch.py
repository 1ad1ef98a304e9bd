"""Batches prepared ahead of the training loop, by threads: decoding and resizing leave the interpreter's lock free."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Prefetch(Generic[Batch]):
    """`get(step)` for step after step. What a step's batch holds is `make`'s affair: threads only change when it is made."""

    def __init__(self, make: Callable[[int], Batch], workers: int) -> None:
        """With 0 workers a batch is made when it is asked for."""
        self.make, self.workers = make, workers
        self.pool = ThreadPoolExecutor(workers, "hvscale-data") if workers else None
        self.coming: dict[int, Future[Batch]] = {}

    def get(self, step: int) -> Batch:
        """Raises what `make` raises."""
        if self.pool is None:
            return self.make(step)
        for ahead in range(step, step + 1 + self.workers):
            if ahead not in self.coming:
                self.coming[ahead] = self.pool.submit(self.make, ahead)
        return self.coming.pop(step).result()

    def __enter__(self) -> "Prefetch[Batch]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
