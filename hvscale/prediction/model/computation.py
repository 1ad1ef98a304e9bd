"""When the slowest rank has computed and enqueued each tensor, on any number of ranks.

Ranks beyond the recording repeat recorded ranks: each further set of ranks is at another recorded
step, as in a replay. Beyond the number of recorded steps of all ranks, the slowest rank is slower
than any that was recorded: its time follows an exponential tail, whose mean excess is that of the
slowest tenth of the recorded steps (peaks over threshold; Coles, An Introduction to Statistical
Modeling of Extreme Values, 2001, chapter 4, with shape 0).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvscale.prediction.model.job import PredictedJob

Floats = NDArray[np.float64]
TAIL_SHARE = 0.1


@dataclass(frozen=True)
class Draw:
    """Steps of several independent jobs.

    `ready`: (chains, tensors), seconds after the last result until the slowest rank has computed
    the tensor. `compute`: (chains,), the same for the last tensor of the average rank. `enqueued`:
    as `ready`, until the last rank has enqueued the tensor, ahead of its GPU; None: when ready.
    """

    ready: Floats
    compute: Floats
    enqueued: Floats | None = None


class Computation:
    """Draws the computation between two waits: the end of a step, and the next one."""

    def __init__(self, job: PredictedJob, np_: int) -> None:
        self.np = np_
        # (steps, ranks, tensors): computation after a step's last wait precedes the next step.
        # Where the host runs ahead of a GPU, the moments of enqueueing follow those of the tensors.
        self.tensors = job.ready.shape[2]
        moments = job.ready if job.enqueued is None else np.concatenate([job.ready, job.enqueued], axis=2)
        spans = np.moveaxis(np.roll(job.after, 1, axis=1)[:, :, None] + moments, 0, 1)
        self.spans = spans
        self.steps, self.ranks = spans.shape[:2]
        self.slowest = spans.max(axis=1)
        self.last = spans[:, :, : self.tensors].max(axis=2)
        self.mean = self.last.mean(axis=1)
        self.excess = self._mean_excess()

    def _mean_excess(self) -> float:
        spans = np.sort(self.last.ravel())
        tail = spans[int((1 - TAIL_SHARE) * len(spans)) :]
        return float(tail.mean() - tail[0]) if len(tail) > 1 else 0.0

    def draw(self, chains: int, generator: np.random.Generator) -> Draw:
        """Draw one step of each of `chains` jobs."""
        sets, rest = divmod(self.np, self.ranks)
        chosen = self._sets(sets, chains, generator)
        ready = self._slowest_of(chosen)
        compute = self.ranks * (chosen @ self.mean)
        if rest:
            step = generator.integers(self.steps, size=chains)
            some = generator.permuted(np.tile(np.arange(self.ranks), (chains, 1)), axis=1)[:, :rest]
            ready = np.maximum(ready, self.spans[step[:, None], some].max(axis=1))
            compute += self.last[step[:, None], some].sum(axis=1)
        beyond = self.np / (self.steps * self.ranks)
        if beyond > 1:
            # The largest of k exponential excesses follows Gumbel's distribution around ln k.
            extra = self.excess * np.maximum(np.log(beyond) + generator.gumbel(size=chains), 0)
            ready = ready + extra[:, None]
        enqueued = ready[:, self.tensors :] if ready.shape[1] > self.tensors else None
        return Draw(ready[:, : self.tensors], compute / self.np, enqueued)

    def _sets(self, sets: int, chains: int, generator: np.random.Generator) -> Floats:
        """(chains, steps): how many sets of ranks are at each recorded step."""
        if not sets:
            return np.zeros((chains, self.steps))
        return generator.multinomial(sets, np.full(self.steps, 1 / self.steps), size=chains).astype(np.float64)

    def _slowest_of(self, chosen: Floats) -> Floats:
        """(chains, tensors): the latest moment among the chosen steps."""
        ready = np.full((len(chosen), self.slowest.shape[1]), -np.inf)
        for row, counts in enumerate(chosen):
            at = np.flatnonzero(counts)
            if len(at):
                ready[row] = self.slowest[at].max(axis=0)
        return ready
