"""Which samples each batch of a data set holds, and loading batches ahead of time.

The order of samples is the same for any number of ranks, workers and batches per step.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class TrainingSample:
    """A sample to train on."""

    epoch: int
    index: int
    """Index in the data set."""


@dataclass(frozen=True)
class Position:
    """The position of training in the data, independent of the number of ranks."""

    epoch: int
    used: int
    """Number of samples used in this epoch, from the start of its order."""


class EpochOrder:
    """Each epoch is a permutation that depends on the seed and the epoch only.

    Samples that do not fill a last step are left out.
    """

    def __init__(self, samples: int, seed: int, global_batch: int) -> None:
        """`global_batch`: samples of one step over all ranks.

        Raises RequestError if there are fewer samples.
        """
        if samples < global_batch:
            raise RequestError(
                f"a step takes {global_batch} images over all ranks, but there are only {samples}: lower --batch-size or --batches-per-allreduce"
            )
        self.samples, self.seed, self.global_batch = samples, seed, global_batch
        self.steps_per_epoch = samples // global_batch
        self._start = (0, Position(0, 0))
        self._permutation: tuple[int, NDArray[np.int64]] | None = None

    def resume(self, step: int, position: Position) -> int:
        """Make `step` the first one after `position`, which any global batch may have reached.

        Returns the number that `step` would have if all steps had used this global batch.
        """
        self._start = (step, position)
        return (position.epoch + 1) * self.steps_per_epoch - self._steps_left(position)

    def position(self, step: int) -> Position:
        """The position before a step, counted from 0 over all epochs."""
        first, start = self._start
        after = step - first - self._steps_left(start)
        if after < 0:
            return Position(start.epoch, start.used + (step - first) * self.global_batch)
        epochs, within = divmod(after, self.steps_per_epoch)
        return Position(start.epoch + 1 + epochs, within * self.global_batch)

    def samples_of(self, step: int, batch: int, batch_size: int) -> list[TrainingSample]:
        """The samples of a step's batch number `batch`: those of all ranks are counted from 0."""
        position = self.position(step)
        start = position.used + batch * batch_size
        return [
            TrainingSample(position.epoch, int(index))
            for index in self._order(position.epoch)[start : start + batch_size]
        ]

    def _steps_left(self, position: Position) -> int:
        """Whole steps in the rest of an epoch."""
        return max(0, self.samples - position.used) // self.global_batch

    def _order(self, epoch: int) -> NDArray[np.int64]:
        cached = self._permutation
        if cached is None or cached[0] != epoch:
            # One assignment, because workers call this at the same time.
            self._permutation = cached = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.samples))
        return cached[1]


class Prefetch(Generic[Batch]):
    """Loads batches ahead in threads; decoding and resizing images release the interpreter's lock.

    The number of threads does not change what a batch contains.
    """

    def __init__(self, load: Callable[[int], Batch], workers: int) -> None:
        """`load(number)` loads a batch. With 0 workers `get` calls it directly."""
        self.load, self.workers = load, workers
        self.pool = ThreadPoolExecutor(workers, "hvscale-data") if workers else None
        self.pending: dict[int, Future[Batch]] = {}

    def get(self, number: int) -> Batch:
        """Batch `number`, which must increase by one with each call. Raises what `load` raises."""
        if self.pool is None:
            return self.load(number)
        for ahead in range(number, number + 1 + self.workers):
            if ahead not in self.pending:
                self.pending[ahead] = self.pool.submit(self.load, ahead)
        return self.pending.pop(number).result()

    def __enter__(self) -> "Prefetch[Batch]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
