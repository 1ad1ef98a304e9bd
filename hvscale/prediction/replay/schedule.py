"""What a rank of a replay does in each step: when it enqueues which tensors, and when it waits.

A replay may have more ranks than the recording. Rank r then repeats recorded rank r modulo the
recorded number, and each further set of ranks starts at another recorded step, so that the ranks of
a replay differ as the recorded ones do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from typing import NamedTuple

import numpy as np

from hvscale.profiling.analyze.gradients import JobGradients, RankSteps
from hvscale.profiling.read.gradients_file import GradientStep

SEED = 20210401  # any fixed number: two replays of a recording make the same calls


def first_counted(steps: int) -> int:
    """The first step of a replay whose times count.

    Horovod sets itself up in the first one, which the recording leaves out too.
    """
    return min(1, steps - 1)


def steps_in_words(steps: int) -> str:
    """The number of replayed steps, and whether the first one counts."""
    return f"{steps} steps (the first not counted)" if first_counted(steps) else f"{steps} step"


class Enqueue(NamedTuple):
    """Enqueue a tensor, or all tensors of a group, so many seconds after the last wait.

    `computed`: when the GPU has computed all of them, seconds after the step's start there; None if
    unknown.
    """

    seconds: float
    tensors: tuple[int, ...]
    computed: float | None = None


class Wait(NamedTuple):
    """Compute until so many seconds after the last wait; then wait for the oldest handles.

    A tensor has a handle, or all tensors of a group have one.
    """

    seconds: float
    handles: int


@dataclass(frozen=True)
class StepSchedule:
    """One step of one rank. `compute_seconds`: from the last wait to the end of the step.

    `gpu_seconds`: the same on the GPU, None if unknown.
    """

    actions: list[Enqueue | Wait]
    compute_seconds: float
    gpu_seconds: float | None = None


def first_step(rank: int, recorded_ranks: int, recorded_steps: int) -> int:
    """The recorded step, counted from 0, at which a rank of a replay begins."""
    sets = rank // recorded_ranks
    return int(np.random.default_rng(SEED).integers(0, recorded_steps, sets + 1)[-1]) if sets else 0


class RankSchedule:
    """The steps of one rank of a replay, without end."""

    def __init__(self, gradients: JobGradients, rank: int) -> None:
        self.numbers = gradients.numbers
        self.source: RankSteps = gradients.ranks[rank % len(gradients.ranks)]
        positions = {tensor: number for number, tensor in enumerate(gradients.tensors)}
        self.known = [positions.get(tensor, -1) for tensor in self.source.recording.tensors]
        self.tensors = gradients.tensors
        self.first = first_step(rank, len(gradients.ranks), len(self.numbers))

    def __iter__(self) -> Iterator[StepSchedule]:
        number = self.first
        while True:
            yield self.schedule(self.source.steps[self.numbers[number % len(self.numbers)]])
            number += 1

    def schedule(self, step: GradientStep) -> StepSchedule:
        """Turn a recorded step into actions; each wait starts the clock anew."""
        actions: list[Enqueue | Wait] = []
        begin, enqueued = 0.0, 0
        times = step.on_gpu
        ready = [] if times is None else times.ready.tolist()
        # A rank waits for its gradients, so that none is computed after the step's end.
        moments = [None if isnan(moment) else min(moment, step.seconds) for moment in ready]
        computed = moments or [None] * len(step.tensors)
        for wait, position in enumerate([*step.positions.tolist(), len(step.tensors)]):
            for index in range(enqueued, position):
                tensor = self.known[step.tensors[index]]
                seconds = max(0.0, float(step.enqueued[index]) - begin)
                enqueue = Enqueue(seconds, (tensor,), computed[index])
                if not self._joins(actions, enqueue):
                    actions.append(enqueue)
            enqueued = max(enqueued, position)
            if wait < len(step.positions):
                actions.append(Wait(max(0.0, float(step.begins[wait]) - begin), int(step.handles[wait])))
                # What the rank computed between the calls of synchronize() follows the wait.
                begin = float(step.begins[wait] + step.blocked[wait])
        gpu_seconds = None if times is None else min(times.after, step.seconds)
        return StepSchedule(actions, max(0.0, step.seconds - begin), gpu_seconds)

    def _joins(self, actions: list[Enqueue | Wait], enqueue: Enqueue) -> bool:
        """Add a tensor to the grouped all-reduce that ends `actions`, if it belongs there."""
        last = actions[-1] if actions else None
        group = self.tensors[enqueue.tensors[0]].group
        if group is None or not isinstance(last, Enqueue) or self.tensors[last.tensors[0]].group != group:
            return False
        computed = max((one.computed for one in (last, enqueue) if one.computed is not None), default=None)
        actions[-1] = Enqueue(last.seconds, (*last.tensors, *enqueue.tensors), computed)
        return True
