"""The order in which a data set's samples come, the same for any number of ranks, workers and batches between them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError


@dataclass(frozen=True)
class Place:
    """A sample in the order of training."""

    epoch: int
    index: int
    """In the data set."""


@dataclass(frozen=True)
class Reached:
    """How far training has come, whatever the number of ranks."""

    epoch: int
    used: int
    """Samples of this epoch that were used: the first ones of its order."""


class EpochOrder:
    """Each epoch is a new permutation that depends on the seed and the epoch only; what does not fill a last step is left out."""

    def __init__(self, samples: int, seed: int, joint_batch: int) -> None:
        """`joint_batch`: samples of one step, of all ranks together. Raises RequestError when there are not that many."""
        if samples < joint_batch:
            raise RequestError(
                f"a step takes {joint_batch} images of all ranks, and there are {samples}: lower --batch-size"
            )
        self.samples, self.seed, self.joint_batch = samples, seed, joint_batch
        self.steps_per_epoch = samples // joint_batch
        self._begin = (0, Reached(0, 0))
        self._permutation: tuple[int, NDArray[np.int64]] | None = None

    def go_on(self, step: int, reached: Reached) -> int:
        """`step` and those after it share out what others, of any joint batch, have left of the epoch. Returns the step it would
        be, had all been of this joint batch."""
        self._begin = (step, reached)
        return (reached.epoch + 1) * self.steps_per_epoch - self._left(reached)

    def reached(self, step: int) -> Reached:
        """What was used before a step, counted from 0 over all epochs."""
        first, begin = self._begin
        after = step - first - self._left(begin)
        if after < 0:
            return Reached(begin.epoch, begin.used + (step - first) * self.joint_batch)
        epochs, within = divmod(after, self.steps_per_epoch)
        return Reached(begin.epoch + 1 + epochs, within * self.joint_batch)

    def own(self, step: int, rank: int, batch_size: int) -> list[Place]:
        """This rank's samples of a step."""
        reached = self.reached(step)
        start = reached.used + rank * batch_size
        return [Place(reached.epoch, int(index)) for index in self._order(reached.epoch)[start : start + batch_size]]

    def _left(self, reached: Reached) -> int:
        """Whole steps in the rest of an epoch."""
        return max(0, self.samples - reached.used) // self.joint_batch

    def _order(self, epoch: int) -> NDArray[np.int64]:
        kept = self._permutation
        if kept is None or kept[0] != epoch:
            # One assignment, because workers call this at the same time.
            self._permutation = kept = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.samples))
        return kept[1]
