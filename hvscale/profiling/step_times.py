"""Where the steps of a run lie on the clock of its recorded messages."""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvscale.core.files import LINES_BYTES, read_text
from hvscale.errors import RequestError
from hvscale.profiling.events import Recording
from hvscale.run_folder import RunFolder

# The part of a step's gradients that small other all-reduces of the job may add up to.
TOLERANCE = 0.01


@dataclass(frozen=True)
class StepLog:
    """What steps.jsonl says of each step, in arrays of one length; NaN where a step does not say it."""

    seconds: NDArray[np.float64]
    images: NDArray[np.float64]
    exposed_seconds: NDArray[np.float64]


def read_step_log(run: RunFolder) -> StepLog | None:
    """None where the run has no steps. Raises RequestError when steps.jsonl is damaged; a last line that was cut short is left out."""
    try:
        lines = read_text(run.steps, LINES_BYTES, errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RequestError(f"{run.steps} cannot be read: {error.strerror}") from error
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    steps = [_columns(run, number, line) for number, line in enumerate(lines, 1)]
    return StepLog(*np.array(steps, np.float64).T) if steps else None


def _columns(run: RunFolder, number: int, line: str) -> tuple[float, float, float]:
    try:
        step = json.loads(line)
        seconds = float(step["seconds"])
        if not 0 < seconds < 1e9:
            raise ValueError(seconds)
        others = (step.get("images"), step.get("communication_seconds"))
        images, exposed = (float("nan") if value is None else float(value) for value in others)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise RequestError(f"{run.steps} is damaged: line {number} does not tell a step's seconds") from error
    return seconds, images, exposed


def step_edges(recording: Recording, log: StepLog | None) -> NDArray[np.int64] | None:
    """The ends of all steps in nanoseconds since 1970, the start of the first one before them; None where they cannot be told.

    Marks that the program made (`hvscale.profiling.marks`) are taken as they are: the step after the last one has no end. Else
    steps.jsonl has durations only. Every step all-reduces the same bytes of gradients, so the message that completes a step's
    share ends before the step does, and the latest of these ends, each less its step's own time, places the steps on the clock.
    """
    events = recording.events
    marks = recording.steps.get(min(recording.ranks, default=0), np.empty(0, np.int64))
    if len(marks) > 1:
        return marks
    if log is None or recording.overwritten or "allreduce" not in events.operations:
        return None
    of_rank = events.rank == min(recording.ranks)
    chosen = of_rank & (events.operation == events.operations.index("allreduce")) & ~events.bitwise
    end_ns = events.start_ns[chosen] + events.duration_ns[chosen]
    order = np.argsort(end_ns, kind="stable")
    end_ns, moved = end_ns[order], np.cumsum(events.bytes[chosen][order], dtype=np.float64)
    steps = len(log.seconds)
    if not len(moved) or not moved[-1]:
        return None
    share = moved[-1] / steps
    complete = np.searchsorted(moved, share * (np.arange(1, steps + 1) - TOLERANCE))
    since_first = np.concatenate([[0.0], np.cumsum(log.seconds)]) * 1e9
    start = float(np.max(end_ns[complete] - since_first[1:]))
    edges = (start + since_first).astype(np.int64)
    of_step = np.bincount(np.searchsorted(edges, end_ns), weights=events.bytes[chosen][order], minlength=steps + 2)
    # Steps that do not hold their gradients were not found: the job's all-reduces are not its steps'.
    found = np.abs(of_step[1 : steps + 1] - share) < share / 2
    return edges if found.mean() > 0.9 else None


def edges_by_rank(recording: Recording, edges_ns: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """The same steps as each rank marked them; a rank has `edges_ns`, those of the lowest one, for what it did not mark.

    Ranks enter a step at different times: one that is ahead sends its first messages before another's step begins.
    """
    found = {}
    for rank in recording.ranks:
        own = recording.steps.get(rank, edges_ns[:0])
        # A ring that wrapped holds the last steps of each rank, which need not begin with the same one.
        first = int(np.argmin(np.abs(own - edges_ns[0]))) if recording.overwritten and len(own) else 0
        own = own[first : first + len(edges_ns)]
        found[rank] = np.maximum.accumulate(np.concatenate([own, edges_ns[len(own) :]]))
    return found
