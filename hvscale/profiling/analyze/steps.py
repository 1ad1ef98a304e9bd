"""Finds the steps of a run on the clock of its recorded messages.

Sources, in order of preference: the program's step marks, and steps.jsonl. For a run without them,
bytes_per_step.py finds its steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hvscale.core.errors import RequestError
from hvscale.core.line_files import damaged_lines, read_lines
from hvscale.core.numbers import StepImages, StepSeconds
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.events import Events, Recording
from hvscale.profiling.read.passes import pieces

# Maximum of the job's other all-reduces, as a fraction of a step's gradients.
TOLERANCE = 0.01


@dataclass(frozen=True)
class LoggedSteps:
    """The steps in steps.jsonl, in arrays of one length; NaN for a missing value.

    `warning` names the damaged lines, which are skipped. `lines` has the numbers of the others,
    from 1; None if no line is damaged.
    """

    seconds: NDArray[np.float64]
    images: NDArray[np.float64]
    exposed_seconds: NDArray[np.float64]
    warning: str | None = None
    lines: NDArray[np.int64] | None = None

    @property
    def steps(self) -> NDArray[np.int64]:
        """The number of each step, from 1."""
        return np.arange(1, len(self.seconds) + 1) if self.lines is None else self.lines


class _StepLine(BaseModel):
    """The fields that are read from one line, which any program may have written."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    seconds: StepSeconds
    images: StepImages | None = None
    communication_seconds: float | None = None


def read_step_log(run: RunFolder) -> LoggedSteps | None:
    """Reads steps.jsonl; None if the run has no steps.

    Skips damaged lines, and a last line without its end, which may still be being written.

    Raises RequestError if the file cannot be read.
    """
    try:
        found = read_lines(run.steps, _StepLine.model_validate_json)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RequestError(f"{run.steps} cannot be read: {error.strerror}") from error
    if not found.values and not found.damaged:
        return None
    rows = [(step.seconds, step.images, step.communication_seconds) for step in found.values]
    seconds, images, exposed_seconds = np.array(rows, np.float64).reshape(-1, 3).T  # None becomes NaN
    return LoggedSteps(
        seconds,
        images,
        exposed_seconds,
        warning=damaged_lines(run.steps, found.damaged),
        lines=np.array(found.numbers, np.int64) if found.damaged else None,
    )


def step_edges(recording: Recording, log: LoggedSteps | None) -> NDArray[np.int64] | None:
    """The start of the first step and the ends of all steps, in nanoseconds since 1970.

    None if they are unknown. Step marks (`hvscale.profiling.step`) are used as they are, except for
    a last step that was stopped, and steps of which a full ring lost messages; the step after the
    last mark has no end.

    Without marks, the durations in steps.jsonl are aligned with the messages. Every step
    all-reduces the same bytes of gradients, so the message that completes them ends before its step
    does. That gives a lower bound for the start of the first step; the largest bound is used.
    """
    names = recording.events.operations
    marks = recording.steps.get(min(recording.ranks, default=0), np.empty(0, np.int64))
    if len(marks) > 1:
        marks = _marks_in_all_rings(recording, marks) if recording.overwritten else marks
        return _without_stopped_step(recording, marks) if len(marks) > 1 else None
    # A missing duration would shift all later steps.
    if log is None or log.warning is not None or recording.overwritten or "allreduce" not in names:
        return None
    end_ns, size, _ = _ends_and_bytes(
        recording, lambda events: (events.operation == names.index("allreduce")) & ~events.bitwise
    )
    sent = np.cumsum(size, dtype=np.float64)
    steps = len(log.seconds)
    if not len(sent) or not sent[-1]:
        return None
    bytes_per_step = sent[-1] / steps
    complete = np.searchsorted(sent, bytes_per_step * (np.arange(1, steps + 1) - TOLERANCE))
    since_first = np.concatenate([[0.0], np.cumsum(log.seconds)]) * 1e9
    start = float(np.max(end_ns[complete] - since_first[1:]))
    edges = (start + since_first).astype(np.int64)
    sent_in_step = np.bincount(np.searchsorted(edges, end_ns), weights=size, minlength=steps + 2)
    # Unless most steps contain their gradients, the job's all-reduces do not belong to its steps.
    plausible = np.abs(sent_in_step[1 : steps + 1] - bytes_per_step) < bytes_per_step / 2
    return edges if plausible.mean() > 0.9 else None


def _marks_in_all_rings(recording: Recording, marks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lowest rank's marks since the ring that begins last."""
    return marks[int(np.argmin(np.abs(marks - last_ring_begin(recording)))) :]


def last_ring_begin(recording: Recording) -> int:
    """When the ring that begins last begins: a rank with more calls has fewer steps in its ring."""
    begins = {part.rank: int(part.times()[:, 1].min()) for part in recording.events.parts if part.times()[:, 0].any()}
    begins |= {rank: int(own[0]) for rank, own in recording.steps.items() if len(own)}
    return max(begins.values(), default=0)


def _without_stopped_step(recording: Recording, marks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lowest rank's marks up to the last step that the other ranks ended too.

    A job stopped between two ranks' marks leaves a step without some ranks' last messages. Ranks
    that end together are at most one step apart: one with fewer marks ended early, and the steps
    after that count.
    """
    one_fewer = any(len(own) == len(marks) - 1 for own in recording.steps.values())
    return marks[:-1] if one_fewer and len(marks) > 2 and not recording.overwritten else marks


def first_mark(recording: Recording, own_ns: NDArray[np.int64], edges_ns: NDArray[np.int64]) -> int:
    """Which of a rank's marks begins the first step.

    After an overflow each rank's ring holds its last steps, which may begin at different steps.
    """
    return int(np.argmin(np.abs(own_ns - edges_ns[0]))) if recording.overwritten and len(own_ns) else 0


def edges_by_rank(recording: Recording, edges_ns: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """The step edges of each rank, from its own marks.

    `edges_ns`: the edges of the lowest rank, used for steps that a rank did not mark. Ranks enter a
    step at different times: a fast rank sends its first messages before another's step begins.
    """
    found = {}
    for rank in recording.ranks:
        own = recording.steps.get(rank, edges_ns[:0])
        first = first_mark(recording, own, edges_ns)
        own = own[first : first + len(edges_ns)]
        found[rank] = np.maximum.accumulate(np.concatenate([own, edges_ns[len(own) :]]))
    return found


def gradient_messages(recording: Recording) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The end times of the lowest rank's collectives, ascending, their bytes, and their durations.

    Times are in nanoseconds. Bitwise reductions, by which Horovod's ranks negotiate, are excluded.
    """
    return _ends_and_bytes(recording, lambda events: ~events.bitwise & (events.bytes > 0))


def _ends_and_bytes(
    recording: Recording, chosen: Callable[[Events], NDArray[np.bool_]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The end times of the lowest rank's chosen messages, ascending, their bytes and durations."""
    rank = min(recording.ranks, default=0)
    found = [(np.empty(0, np.int64),) * 3]
    for part in recording.events.parts:
        if part.rank == rank:
            for events in pieces(part, detail=False):
                kept = events.take(chosen(events))
                found.append((kept.start_ns + kept.duration_ns, kept.bytes, kept.duration_ns))
    end_ns, size, duration_ns = (np.concatenate(columns) for columns in zip(*found, strict=True))
    order = np.argsort(end_ns, kind="stable")
    return end_ns[order], size[order], duration_ns[order]
