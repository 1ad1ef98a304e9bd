"""Reads a job's steps: their work and seconds, and the losses of the first ones."""

import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hvscale.core.documents import parse_json
from hvscale.core.errors import RequestError
from hvscale.core.line_files import read_lines
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate, estimate
from hvscale.core.units import MIB
from hvscale.launch.supervision.output import uncoloured_lines_of
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.analyze.bytes_per_step import find_bytes_per_step, split_by_bytes
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.profiling.read.events import Recording
from hvscale.studies.throughput import PER_RANK, Metric, number

StepSourceKind = Literal["metric", "steps", "marks", "collectives"]
MEASURED_BY: dict[StepSourceKind, str] = {
    "metric": "what --metric matches",
    "steps": "the steps that the command writes into steps.jsonl",
    "marks": "the steps that the command marks for hvprof",
    "collectives": "the period of its collectives",
}
# Without --metric, the first of these that a run has is used.
IN_ORDER: tuple[StepSourceKind, ...] = ("steps", "marks", "collectives")
WARMUP_STEPS = 3  # slower: they allocate memory, connect ranks and compile kernels
INTERVAL_BLOCKS = 8  # for confidence intervals: the times of neighbouring steps are correlated
COMPARED_LOSSES = 10  # of the first steps; later ones drift apart by rounding
# Relative. Another order of summation, or bf16 instead of fp32, gives a far smaller difference.
LOSS_TOLERANCE = 0.05
IMAGES_UNIT = "images/s"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredSteps:
    """The work and the seconds of each step; work / seconds is in `unit`."""

    work: Floats
    seconds: Floats
    unit: str | None

    def __len__(self) -> int:
        return len(self.work)

    def after(self, first: int) -> "MeasuredSteps":
        return MeasuredSteps(self.work[first:], self.seconds[first:], self.unit)

    def throughput(self) -> Estimate | None:
        """All work over all seconds, with an interval over blocks of neighbouring steps.

        The seconds of a step without work, such as an evaluation, count for the next step, because
        a block of such steps has no rate. None if no step has work.
        """
        has_work = self.work > 0
        work = self.work[has_work]
        if not len(work):
            return None
        counted_in = np.minimum(np.cumsum(has_work) - has_work, len(work) - 1)
        seconds = np.bincount(counted_in, self.seconds)
        edges = np.linspace(0, len(work), min(INTERVAL_BLOCKS, len(work)) + 1).astype(int)
        sums = [(work[start:end].sum(), seconds[start:end].sum()) for start, end in itertools.pairwise(edges)]
        found = estimate([float(done / taken) for done, taken in sums])
        total = sum(done for done, _ in sums) / sum(taken for _, taken in sums)
        return found.times(float(total) / found.mean)


class StepSource:
    """Reads the steps of all runs of one command from the same source: the best of the first run.

    `kind`: the source, None until it is locked. `share`: bytes that each step sends, if steps are
    counted by collectives.
    """

    def __init__(self, np: int, metric: Metric | None, kind: StepSourceKind | None = None) -> None:
        self.np, self.metric = np, metric
        self.kind: StepSourceKind | None = "metric" if metric is not None else kind
        self.share: float | None = None
        self.unit_of_share = "steps/s"
        self.read_from: StepSourceKind | None = None  # the source of the last steps

    @property
    def warmup(self) -> int:
        """Number of first steps that do not count; with --metric one match, often of many steps."""
        return 1 if self.kind == "metric" else WARMUP_STEPS

    def steps(self, run: RunFolder) -> MeasuredSteps | None:
        """The steps so far; None without any.

        Raises RequestError if --metric matches something other than a number.
        """
        readers: dict[StepSourceKind, Callable[[RunFolder], MeasuredSteps | None]] = {
            "metric": self._metric,
            "steps": self._log,
            "marks": self._marks,
            "collectives": self._collectives,
        }
        kinds: tuple[StepSourceKind, ...] = (self.kind,) if self.kind is not None else IN_ORDER
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
        by_rank = []
        for rank in range(self.np):
            log, pattern = run.log(rank), self.metric.pattern
            # A rank may have cut its last line inside a number. A progress bar has no other line.
            for unfinished in (False, True):
                lines = uncoloured_lines_of(log, unfinished=unfinished)
                if found := [match for line in lines for match in pattern.finditer(line)]:
                    break
            if found:
                by_rank.append([number(match[self.metric.group], run, rank) for match in found])
        if not by_rank:
            return None
        if self.metric.group == PER_RANK:
            shortest = min(map(len, by_rank))
            values = self.np * np.mean([values[:shortest] for values in by_rank], axis=0)
        else:
            values = np.array(by_rank[0])
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
            return MeasuredSteps(log.images[has_images], log.seconds[has_images], IMAGES_UNIT)
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
    """The recording of a run; None while there is nothing readable."""
    try:
        return read_recording(run)
    except RequestError:
        return None


def losses(run: RunFolder) -> dict[int, float | None]:
    """The losses of the first steps, by line of steps.jsonl.

    None for a missing loss or one that is not finite. Damaged lines are skipped.
    """
    with suppress(OSError):
        found = read_lines(run.steps, _loss)
        return {line: loss for line, loss in zip(found.numbers, found.values, strict=True) if line <= COMPARED_LOSSES}
    return {}


def _loss(line: bytes) -> float | None:
    """The loss in a line of steps.jsonl. Raises ValueError if the line is damaged."""
    try:
        loss = parse_json(line).get("loss")
        return float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else None
    except (AttributeError, OverflowError) as error:
        raise ValueError("not a line of steps.jsonl") from error


def differing_loss(run: RunFolder, reference: RunFolder) -> str | None:
    """A sentence about the first step whose loss differs from the reference's; None without one.

    A sum that is wrong in the same way on all ranks shows only in the losses.
    """
    of_run, of_reference = losses(run), losses(reference)
    for step in sorted(of_run.keys() & of_reference.keys()):
        found, expected = of_run[step], of_reference[step]
        if expected is None:
            continue
        if found is None or abs(found - expected) > LOSS_TOLERANCE * max(abs(expected), 1e-6):
            return f"the loss of step {step} is {found}, but {expected} with the defaults"
    return None
