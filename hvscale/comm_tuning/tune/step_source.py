"""Reads the steps of a running job: the work and the seconds of each step."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate, estimate
from hvscale.core.units import MIB
from hvscale.launch.supervision.output import lines_of
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.analyze.steps import find_bytes_per_step, read_step_log, split_by_bytes
from hvscale.profiling.read.events import Recording
from hvscale.studies.throughput import PER_RANK, Metric, number

Kind = Literal["metric", "steps", "marks", "collectives"]
MEASURED_BY: dict[Kind, str] = {
    "metric": "what --metric matches",
    "steps": "the steps that the command writes into steps.jsonl",
    "marks": "the steps that the command marks for hvprof",
    "collectives": "the period of its collectives",
}
# The first of these that a run has is used where --metric is not given.
IN_ORDER: tuple[Kind, ...] = ("steps", "marks", "collectives")
WARMUP_STEPS = 3  # slower: memory is allocated, connections are made, kernels are compiled
INTERVAL_BLOCKS = 8  # blocks of neighbouring steps, whose times are correlated, for a confidence interval
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredSteps:
    """The work of each step, so that work / seconds is in `unit`, and its seconds."""

    work: Floats
    seconds: Floats
    unit: str | None

    def __len__(self) -> int:
        return len(self.work)

    def after(self, first: int) -> "MeasuredSteps":
        return MeasuredSteps(self.work[first:], self.seconds[first:], self.unit)

    def throughput(self) -> Estimate | None:
        """The mean over all steps; None without steps.

        Its interval is over blocks of neighbouring steps.
        """
        if not len(self):
            return None
        edges = np.linspace(0, len(self), min(INTERVAL_BLOCKS, len(self)) + 1).astype(int)
        sums = [(self.work[start:end].sum(), self.seconds[start:end].sum()) for start, end in itertools.pairwise(edges)]
        found = estimate([float(work / seconds) for work, seconds in sums])
        total = sum(work for work, _ in sums) / sum(seconds for _, seconds in sums)
        return found.times(float(total) / found.mean)


class StepSource:
    """Reads the steps of all runs of one command from the same source.

    It is the best one that the first run has.

    `kind`: the source, None until it is locked; `share`: bytes that each step sends, where steps
    are counted from collectives.
    """

    def __init__(self, np: int, metric: Metric | None, kind: Kind | None = None) -> None:
        self.np, self.metric = np, metric
        self.kind: Kind | None = "metric" if metric is not None else kind
        self.share: float | None = None
        self.unit_of_share = "steps/s"
        self.read_from: Kind | None = None  # the source of the last steps

    @property
    def warmup(self) -> int:
        """MeasuredSteps that do not count.

        With --metric it is one match, which may cover many steps.
        """
        return 1 if self.kind == "metric" else WARMUP_STEPS

    def steps(self, run: RunFolder) -> MeasuredSteps | None:
        """The steps so far; None without any.

        Raises RequestError where --metric matches something other than a number.
        """
        readers: dict[Kind, Callable[[RunFolder], MeasuredSteps | None]] = {
            "metric": self._metric,
            "steps": self._log,
            "marks": self._marks,
            "collectives": self._collectives,
        }
        kinds: tuple[Kind, ...] = (self.kind,) if self.kind is not None else IN_ORDER
        for kind in kinds:
            found = readers[kind](run)
            if found is not None and len(found):
                self.read_from = kind
                return found
        return None

    def lock(self, run: RunFolder) -> None:
        """Read all later runs from the source that this first run was read from."""
        if self.kind is None:
            self.steps(run)
            self.kind = self.read_from
        if self.kind == "collectives":
            self.share, self.unit_of_share = find_bytes_per_step(recording_of(run))

    def _metric(self, run: RunFolder) -> MeasuredSteps | None:
        if self.metric is None:
            return None
        of_ranks = []
        for rank in range(self.np):
            found = [match for line in lines_of(run.log(rank)) for match in self.metric.pattern.finditer(line)]
            if found:
                of_ranks.append([number(match[self.metric.group], run, rank) for match in found])
        if not of_ranks:
            return None
        if self.metric.group == PER_RANK:
            shortest = min(map(len, of_ranks))
            values = self.np * np.mean([of_rank[:shortest] for of_rank in of_ranks], axis=0)
        else:
            values = np.array(of_ranks[0])
        return MeasuredSteps(values, np.ones(len(values)), None)

    def _log(self, run: RunFolder) -> MeasuredSteps | None:
        try:
            log = read_step_log(run)
        except RequestError:
            return None
        if log is None or not len(log.seconds):
            return None
        has_images = np.isfinite(log.images)  # False for a damaged line
        if has_images.any():
            return MeasuredSteps(log.images[has_images], log.seconds[has_images], "images/s")
        return MeasuredSteps(np.ones(len(log.seconds)), log.seconds, "steps/s")

    def _marks(self, run: RunFolder) -> MeasuredSteps | None:
        recording = recording_of(run)
        marks = recording.steps.get(min(recording.ranks, default=0), ()) if recording is not None else ()
        if len(marks) < 2:
            return None
        seconds = np.diff(marks) / 1e9
        return MeasuredSteps(np.ones(len(seconds)), seconds, "steps/s")

    def _collectives(self, run: RunFolder) -> MeasuredSteps | None:
        recording = recording_of(run)
        if recording is None:
            return None
        share, ends = split_by_bytes(recording, self.share)
        if len(ends) < 2:
            return None
        # Several steps may end with the same message: they share its time.
        seconds = np.maximum(np.diff(ends) / 1e9, 1e-9)
        work = 1.0 if self.unit_of_share == "steps/s" else share / MIB
        return MeasuredSteps(np.full(len(seconds), work), seconds, self.unit_of_share)


def recording_of(run: RunFolder) -> Recording | None:
    """The recording of a run; None while the ranks have written nothing readable."""
    try:
        return read_recording(run)
    except RequestError:
        return None


class PollTimer:
    """Says when to poll again: polling must take little of the machine's time."""

    def __init__(self, every: float) -> None:
        self.every, self.next = every, 0.0

    def due(self) -> bool:
        return time.monotonic() >= self.next

    def polled(self, seconds: float) -> None:
        """Note that a poll took so many seconds."""
        self.next = time.monotonic() + max(self.every, 10 * seconds)
