"""How fast a run goes, from what it leaves behind while it goes: its steps, each with the work done in it and its seconds."""

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
from hvscale.profiling.analyze.period import ends_of_shares, share_of_a_step
from hvscale.profiling.analyze.step_times import read_step_log
from hvscale.profiling.read.events import Recording
from hvscale.studies.throughput import PER_RANK, Metric, number

Kind = Literal["metric", "steps", "marks", "collectives"]
MEASURED_BY: dict[Kind, str] = {
    "metric": "what --metric matches",
    "steps": "the steps that the command writes into steps.jsonl",
    "marks": "the steps that the command marks for hvprof",
    "collectives": "the period of its collectives",
}
# Of what needs no --metric, the first that is there.
IN_ORDER: tuple[Kind, ...] = ("steps", "marks", "collectives")
WARMUP_STEPS = 3  # slower, because memory is allocated, connections are made and kernels are compiled
INTERVAL_BLOCKS = 8  # of neighbouring steps, which are alike
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Steps:
    """`work` in `unit` times a second, and `seconds`, of each step."""

    work: Floats
    seconds: Floats
    unit: str | None

    def __len__(self) -> int:
        return len(self.work)

    def after(self, first: int) -> "Steps":
        return Steps(self.work[first:], self.seconds[first:], self.unit)

    def throughput(self) -> Estimate | None:
        """In blocks of neighbours; None without steps."""
        if not len(self):
            return None
        edges = np.linspace(0, len(self), min(INTERVAL_BLOCKS, len(self)) + 1).astype(int)
        sums = [(self.work[start:end].sum(), self.seconds[start:end].sum()) for start, end in itertools.pairwise(edges)]
        found = estimate([float(work / seconds) for work, seconds in sums])
        total = sum(work for work, _ in sums) / sum(seconds for _, seconds in sums)
        return found.times(float(total) / found.mean)


class StepSource:
    """Reads the steps of runs of one command, all in the same way: that in which the first one could be read.

    `share`: bytes that each step sends, where collectives tell the steps.
    """

    def __init__(self, np: int, metric: Metric | None, kind: Kind | None = None) -> None:
        self.np, self.metric = np, metric
        self.kind: Kind | None = "metric" if metric is not None else kind
        self.share: float | None = None
        self.unit_of_share = "steps/s"
        self.read_from: Kind | None = None  # what the last steps were read from

    @property
    def warmup(self) -> int:
        """Steps that do not count; each match of --metric may stand for many."""
        return 1 if self.kind == "metric" else WARMUP_STEPS

    def steps(self, run: RunFolder) -> Steps | None:
        """So far; None where nothing tells them. Raises RequestError where what --metric matches is no number."""
        ways: dict[Kind, Callable[[RunFolder], Steps | None]] = {
            "metric": self._metric,
            "steps": self._log,
            "marks": self._marks,
            "collectives": self._collectives,
        }
        kinds: tuple[Kind, ...] = (self.kind,) if self.kind is not None else IN_ORDER
        for kind in kinds:
            found = ways[kind](run)
            if found is not None and len(found):
                self.read_from = kind
                return found
        return None

    def lock(self, run: RunFolder) -> None:
        """Keep to what tells the steps of this run, the first one, from now on."""
        if self.kind is None:
            self.steps(run)
            self.kind = self.read_from
        if self.kind == "collectives":
            self.share, self.unit_of_share = share_of_a_step(recording_of(run))

    def _metric(self, run: RunFolder) -> Steps | None:
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
        return Steps(values, np.ones(len(values)), None)

    def _log(self, run: RunFolder) -> Steps | None:
        try:
            log = read_step_log(run)
        except RequestError:
            return None
        if log is None or not len(log.seconds):
            return None
        told = np.isfinite(log.images)
        if told.any():  # not in a damaged line
            return Steps(log.images[told], log.seconds[told], "images/s")
        return Steps(np.ones(len(log.seconds)), log.seconds, "steps/s")

    def _marks(self, run: RunFolder) -> Steps | None:
        recording = recording_of(run)
        marks = recording.steps.get(min(recording.ranks, default=0), ()) if recording is not None else ()
        if len(marks) < 2:
            return None
        seconds = np.diff(marks) / 1e9
        return Steps(np.ones(len(seconds)), seconds, "steps/s")

    def _collectives(self, run: RunFolder) -> Steps | None:
        recording = recording_of(run)
        if recording is None:
            return None
        share, ends = ends_of_shares(recording, self.share)
        if len(ends) < 2:
            return None
        # Several of these may end with one message: they share its time.
        seconds = np.maximum(np.diff(ends) / 1e9, 1e-9)
        work = 1.0 if self.unit_of_share == "steps/s" else share / MIB
        return Steps(np.full(len(seconds), work), seconds, self.unit_of_share)


def recording_of(run: RunFolder) -> Recording | None:
    """None while the ranks have written nothing that can be read."""
    try:
        return read_recording(run)
    except RequestError:
        return None


class PollTimer:
    """When to look again: not so often that looking takes much of the machine."""

    def __init__(self, every: float) -> None:
        self.every, self.next = every, 0.0

    def due(self) -> bool:
        return time.monotonic() >= self.next

    def looked(self, seconds: float) -> None:
        """Looking took so long."""
        self.next = time.monotonic() + max(self.every, 10 * seconds)
