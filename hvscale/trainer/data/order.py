"""The order of a data set's samples, the same for any number of ranks, workers and batches a
step.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError


@dataclass(frozen=True)
class Sample:
    """A sample to train on."""

    epoch: int
    index: int
    """Index in the data set."""


@dataclass(frozen=True)
class Position:
    """How far training is through the data, independent of the number of ranks."""

    epoch: int
    used: int
    """Number of samples of this epoch that were used: the first ones of its order."""


class EpochOrder:
    """Each epoch is a permutation given by the seed and the epoch; samples that do not fill a last
    step are left out.
    """

    def __init__(self, samples: int, seed: int, global_batch: int) -> None:
        """`global_batch`: samples of one step over all ranks. Raises RequestError if there are
        fewer samples.
        """
        if samples < global_batch:
            raise RequestError(
                f"a step takes {global_batch} images over all ranks, but there are only {samples}: lower --batch-size"
            )
        self.samples, self.seed, self.global_batch = samples, seed, global_batch
        self.steps_per_epoch = samples // global_batch
        self._begin = (0, Position(0, 0))
        self._permutation: tuple[int, NDArray[np.int64]] | None = None

    def resume(self, step: int, position: Position) -> int:
        """Let `step` be the first one after `position`, whatever global batch led there.

        Returns the number that `step` would have if all steps had had this global batch.
        """
        self._begin = (step, position)
        return (position.epoch + 1) * self.steps_per_epoch - self._left(position)

    def position(self, step: int) -> Position:
        """The position before a step, counted from 0 over all epochs."""
        first, begin = self._begin
        after = step - first - self._left(begin)
        if after < 0:
            return Position(begin.epoch, begin.used + (step - first) * self.global_batch)
        epochs, within = divmod(after, self.steps_per_epoch)
        return Position(begin.epoch + 1 + epochs, within * self.global_batch)

    def samples_of(self, step: int, rank: int, batch_size: int) -> list[Sample]:
        """This rank's samples of a step."""
        position = self.position(step)
        start = position.used + rank * batch_size
        return [Sample(position.epoch, int(index)) for index in self._order(position.epoch)[start : start + batch_size]]

    def _left(self, position: Position) -> int:
        """Whole steps in the rest of an epoch."""
        return max(0, self.samples - position.used) // self.global_batch

    def _order(self, epoch: int) -> NDArray[np.int64]:
        kept = self._permutation
        if kept is None or kept[0] != epoch:
            # One assignment, because workers call this at the same time.
            self._permutation = kept = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.samples))
        return kept[1]
