"""The gradients of a job: when each rank enqueues each tensor, and how long it waits."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.gradients_file import GradientStep, GradientTensor, RankGradients, read_gradients

Seconds = NDArray[np.float64]


class RankSteps(NamedTuple):
    """A rank's recording and, by number, its steps that can be compared with other ranks'."""

    recording: RankGradients
    steps: dict[int, GradientStep]


@dataclass(frozen=True)
class JobGradients:
    """The gradients of the recorded ranks, in the steps that all these ranks have."""

    ranks: list[RankSteps]
    numbers: list[int]
    """The steps, without the first one, in which Horovod sets itself up."""
    left_out: int
    """Steps with other tensors, such as one that also averages a metric, or not on all ranks."""
    warnings: list[str]
    basis: str | None = None
    """Of tensors that are not gradients: what they are, for people."""

    @property
    def size(self) -> int:
        """How many ranks the job had; fewer may have been recorded."""
        return self.ranks[0].recording.header.size

    @cached_property
    def tensors(self) -> list[GradientTensor]:
        """Those of a step, in the order in which rank 0 enqueued them first."""
        first = self.ranks[0]
        return [first.recording.tensors[number] for number in first.steps[self.numbers[0]].tensors]

    @property
    def bytes(self) -> int:
        """Bytes of all tensors of a step."""
        return sum(tensor.bytes for tensor in self.tensors)

    @cached_property
    def enqueued(self) -> Seconds:
        """(ranks, steps, tensors): seconds after the step's start, in the order of `tensors`."""
        return np.array(
            [
                [self._ordered(rank, rank.steps[number], rank.steps[number].enqueued) for number in self.numbers]
                for rank in self.ranks
            ]
        )

    @cached_property
    def on_gpu(self) -> tuple[Seconds, Seconds] | None:
        """When the GPU had computed each tensor, (ranks, steps, tensors), and what follows a wait.

        Seconds after the step's start on the GPU, and (ranks, steps) seconds from the last wait to
        the step's end. None unless all ranks recorded them for every tensor.
        """
        ready, after = [], []
        for rank in self.ranks:
            steps = [rank.steps[number] for number in self.numbers]
            times = [step.on_gpu for step in steps if step.on_gpu is not None and not np.isnan(step.on_gpu.ready).any()]
            if len(times) < len(steps):
                return None
            ready.append([self._ordered(rank, step, one.ready) for step, one in zip(steps, times, strict=True)])
            after.append([one.after for one in times])
        return np.array(ready), np.array(after)

    @cached_property
    def seconds(self) -> Seconds:
        """(ranks, steps): how long each step took."""
        return np.array([[rank.steps[number].seconds for number in self.numbers] for rank in self.ranks])

    @cached_property
    def blocked(self) -> Seconds:
        """(ranks, steps): time inside `synchronize()`."""
        return np.array([[rank.steps[number].blocked.sum() for number in self.numbers] for rank in self.ranks])

    def _ordered(self, rank: RankSteps, step: GradientStep, moments: Seconds) -> list[float]:
        """`moments` of a step's enqueues, in the order of `tensors`."""
        described = rank.recording.tensors
        at = dict(zip((described[tensor] for tensor in step.tensors), moments, strict=True))
        return [float(at[tensor]) for tensor in self.tensors]


def read_job_gradients(run: RunFolder) -> JobGradients:
    """Read the gradients of every recorded rank.

    Raises RequestError when none were recorded, no step is whole, or the ranks disagree on the
    tensors.
    """
    recordings, warnings = _recordings(run)
    sets = [_tensor_sets(one) for one in recordings]
    usual = Counter(tensors for by_step in sets for tensors in by_step.values()).most_common(1)
    if not usual:
        raise RequestError(f"{run.path}: no rank recorded two whole steps: the job must train for at least three steps")
    ranks = [
        RankSteps(one, {step.number: step for step in one.steps[1:] if by_step[step.number] == usual[0][0]})
        for one, by_step in zip(recordings, sets, strict=True)
    ]
    common = set.intersection(*(set(rank.steps) for rank in ranks))
    if not common:
        raise RequestError(f"{run.path}: the ranks disagree on the tensors of a step: they run different models")
    left_out = max(len(one.steps) for one in recordings) - 1 - len(common)
    return JobGradients(ranks, sorted(common), left_out, warnings)


def _recordings(run: RunFolder) -> tuple[list[RankGradients], list[str]]:
    """One for each rank: that of most steps, where a rank's program was started more than once."""
    paths = sorted(run.hvprof.glob("gradients-*.hvg"))
    if not paths:
        raise RequestError(
            f"{run.path} holds no gradients: record them with `hvscale profile --gradients` "
            "and a program that uses horovod.torch on two or more ranks"
        )
    found: dict[int, RankGradients] = {}
    warnings = []
    for path in paths:
        try:
            one = read_gradients(path)
        except RequestError as error:
            warnings.append(str(error))
            continue
        warnings += [one.warning] if one.warning else []
        known = found.get(one.header.rank)
        if known is None or len(one.steps) > len(known.steps):
            found[one.header.rank] = one
    if not found:
        raise RequestError(warnings[0])
    sizes = {one.header.size for one in found.values()}
    if len(sizes) > 1:
        raise RequestError(
            f"{run.path}: its ranks recorded jobs of {' and '.join(map(str, sorted(sizes)))} ranks: "
            "record the job without elastic changes"
        )
    return [found[rank] for rank in sorted(found)], warnings


def _tensor_sets(recording: RankGradients) -> dict[int, frozenset[GradientTensor]]:
    """The tensors of each step but the first, by the step's number."""
    known: dict[bytes, frozenset[GradientTensor]] = {}
    sets = {}
    for step in recording.steps[1:]:
        key = np.sort(step.tensors).tobytes()
        if key not in known:
            known[key] = frozenset(recording.tensors[number] for number in step.tensors)
        sets[step.number] = known[key]
    return sets
