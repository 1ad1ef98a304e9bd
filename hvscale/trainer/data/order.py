"""The order in which a data set's samples come, the same for any number of ranks, workers and batches between them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvscale.errors import RequestError


@dataclass(frozen=True)
class Place:
    """A sample in the order of training."""

    epoch: int
    index: int
    """In the data set."""


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
        self._permutation: tuple[int, NDArray[np.int64]] | None = None

    def own(self, step: int, rank: int, batch_size: int) -> list[Place]:
        """This rank's samples of a step, counted from 0 over all epochs."""
        epoch, within = divmod(step, self.steps_per_epoch)
        start = within * self.joint_batch + rank * batch_size
        return [Place(epoch, int(index)) for index in self._order(epoch)[start : start + batch_size]]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        kept = self._permutation
        if kept is None or kept[0] != epoch:
            # One assignment, because workers call this at the same time.
            self._permutation = kept = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.samples))
        return kept[1]
