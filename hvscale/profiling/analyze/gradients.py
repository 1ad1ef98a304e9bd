"""The gradients of a job: when each rank enqueues each tensor, and how long it waits."""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, ranks_in_words
from hvscale.profiling.read.gradients_file import GradientStep, GradientTensor, RankGradients, read_gradients

Seconds = NDArray[np.float64]
RECORDING = re.compile(r"gradients-(\d+)\.")
FEWEST_TIMED_STEPS = 2
MOST_LEFT_OUT = 0.25  # of the steps, without a warning


def is_timed_on_gpu(step: GradientStep) -> bool:
    """Whether the step has the GPU's time of every tensor."""
    return step.on_gpu is not None and not bool(np.isnan(step.on_gpu.ready).any())


class RankSteps(NamedTuple):
    """A rank's recording and, by number, its steps that can be compared with other ranks'."""

    recording: RankGradients
    steps: dict[int, GradientStep]


@dataclass(frozen=True)
class JobGradients:
    """The gradients of recorded ranks, in the steps that all recorded ranks have."""

    ranks: list[RankSteps]
    """All recorded ones, or the lowest one and those that were chosen."""
    numbers: list[int]
    """The steps, without the first one, in which Horovod sets itself up."""
    left_out: int
    """Steps with other tensors, such as one that also averages a metric, or not on all ranks."""
    warnings: list[str]
    basis: str | None = None
    """Of tensors that are not gradients: what they are, for people."""
    unread: tuple[int, ...] = ()
    """Recorded ranks that are not in `ranks`."""

    @property
    def size(self) -> int:
        """How many ranks the job had; fewer may have been recorded."""
        return self.ranks[0].recording.header.size

    @property
    def recorded(self) -> list[int]:
        """All ranks that were recorded."""
        return sorted([*self.unread, *(rank.recording.header.rank for rank in self.ranks)])

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
            times = [step.on_gpu for step in steps if step.on_gpu is not None and is_timed_on_gpu(step)]
            if len(times) < len(steps):
                return None
            ready.append([self._ordered(rank, step, one.ready) for step, one in zip(steps, times, strict=True)])
            after.append([one.after for one in times])
        return np.array(ready), np.array(after)

    @property
    def timed_on_gpu(self) -> "JobGradients":
        """The steps whose gradients all ranks timed on the GPU, if there are several; else all.

        A rank times every step, or every 2nd, 4th, ... or 32nd, where that would cost too much.
        """
        timed = [number for number in self.numbers if all(is_timed_on_gpu(rank.steps[number]) for rank in self.ranks)]
        return replace(self, numbers=timed) if len(timed) >= FEWEST_TIMED_STEPS else self

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


@dataclass(frozen=True)
class _Read:
    """What was read of a rank: `recording`, without steps unless `is_kept`, and `sets`: the tensors
    of each step but the first, by the step's number.
    """

    recording: RankGradients
    sets: dict[int, frozenset[GradientTensor]]
    is_kept: bool


def read_job_gradients(run: RunFolder, ranks: Collection[int] | None = None) -> JobGradients:
    """Read the gradients of every recorded rank, and hold those of `ranks` (None: all) and of the
    lowest one.

    The steps that all ranks have follow from all files.

    Raises RequestError when none were recorded, no step is whole, or the ranks disagree on the
    tensors.
    """
    found, warnings = _recordings(run, ranks)
    # Steps without any only add gradients up.
    usual = Counter(tensors for one in found for tensors in one.sets.values() if tensors).most_common(1)
    if not usual:
        raise RequestError(f"{run.path}: no gradient was enqueued in a whole step after the first one")
    numbers = [{number for number, tensors in one.sets.items() if tensors == usual[0][0]} for one in found]
    common = set.intersection(*numbers)
    if not common:
        raise RequestError(f"{run.path}: the ranks disagree on the tensors of a step: they run different models")
    kept = [
        RankSteps(one.recording, {step.number: step for step in one.recording.steps[1:] if step.number in of_rank})
        for one, of_rank in zip(found, numbers, strict=True)
        if one.is_kept
    ]
    left_out = max(len(one.sets) for one in found) - len(common)
    others, steps = max((sum(tensors != usual[0][0] for tensors in one.sets.values()), len(one.sets)) for one in found)
    if others > MOST_LEFT_OUT * steps:
        warnings.append(
            f"{run.path}: {others} of {steps} steps have other tensors and are left out, for example those of another "
            f"optimizer: only steps with the same {len(usual[0][0])} tensors are replayed and predicted"
        )
    unread = tuple(one.recording.header.rank for one in found if not one.is_kept)
    return JobGradients(kept, sorted(common), left_out, warnings, unread=unread)


def _recordings(run: RunFolder, ranks: Collection[int] | None) -> tuple[list[_Read], list[str]]:
    """One for each rank: that of most steps, where a rank's program was started more than once."""
    paths = sorted(run.hvprof.glob("gradients-*.hvg"))
    if not paths:
        raise RequestError(
            f"{run.path} holds no gradients: record them with `hvscale profile --gradients` "
            "and a program that uses horovod.torch on two or more ranks"
        )
    found: dict[int, _Read] = {}
    warnings, unused = [], []
    known_sets: dict[frozenset[GradientTensor], frozenset[GradientTensor]] = {}
    for path in paths:
        try:
            one = read_gradients(path)
        except RequestError as error:
            warnings.append(str(error))
            continue
        warnings += [one.warning] if one.warning else []
        rank, sets = one.header.rank, _tensor_sets(one, known_sets)
        if not sets:
            unused.append(rank)
            continue
        if rank in found and len(sets) <= len(found[rank].sets):
            continue
        is_kept = ranks is None or rank in ranks or rank <= min(found, default=rank)
        found[rank] = _Read(one if is_kept else replace(one, tensors=[], steps=[]), sets, is_kept)
    if not found and unused:
        raise RequestError(f"{run.path}: no rank recorded two whole steps: the job must train for at least three steps")
    if not found:
        raise RequestError(warnings[0])
    if lost := sorted({*unused}.difference(found)):
        warnings.append(f"rank {', '.join(map(str, lost))}: no two whole steps in its recording, which is not used")
    sizes = {one.recording.header.size for one in found.values()}
    if len(sizes) > 1:
        raise RequestError(
            f"{run.path}: its ranks recorded jobs of {' and '.join(map(str, sorted(sizes)))} ranks: "
            "record the job without elastic changes"
        )
    [size] = sizes
    recorded = {int(match[1]) for path in paths if (match := RECORDING.match(path.name))}
    if missing := sorted({*range(size)} - recorded):
        named = ranks_in_words(missing)
        warnings.append(f"{run.path}: no recording of {named}: the times of the other ranks are used instead")
    return [found[rank] for rank in sorted(found)], warnings


def _tensor_sets(
    recording: RankGradients, known_sets: dict[frozenset[GradientTensor], frozenset[GradientTensor]]
) -> dict[int, frozenset[GradientTensor]]:
    """The tensors of each step but the first, by the step's number; `known_sets`: of all ranks."""
    known: dict[bytes, frozenset[GradientTensor]] = {}
    sets = {}
    for step in recording.steps[1:]:
        key = np.sort(step.tensors).tobytes()
        if key not in known:
            tensors = frozenset(recording.tensors[number] for number in step.tensors)
            known[key] = known_sets.setdefault(tensors, tensors)
        sets[step.number] = known[key]
    return sets
