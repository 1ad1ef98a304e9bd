"""Where the steps of a run lie on the clock of its recorded messages."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from hvscale.core.errors import RequestError
from hvscale.core.line_files import damaged_lines, read_lines
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.events import Recording

# The part of a step's gradients that small other all-reduces of the job may add up to.
TOLERANCE = 0.01


@dataclass(frozen=True)
class StepLog:
    """What steps.jsonl says of each step, in arrays of one length; NaN where a step does not say
    it.

    `warning`: which lines are damaged and left out. `lines`: the numbers of the others, from 1;
    None where all are there.
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
    """What is read of one line, which any program may have written."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    seconds: Annotated[float, Field(gt=0, lt=1e9)]
    images: Annotated[float, Field(ge=0)] | None = None
    communication_seconds: float | None = None


def read_step_log(run: RunFolder) -> StepLog | None:
    """None where the run has no steps. Damaged lines are left out, and a last line without its end,
    which may be being written.

    Raises RequestError when the file cannot be read at all.
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
    return StepLog(
        seconds,
        images,
        exposed_seconds,
        warning=damaged_lines(run.steps, found.damaged),
        lines=np.array(found.numbers, np.int64) if found.damaged else None,
    )


def step_edges(recording: Recording, log: StepLog | None) -> NDArray[np.int64] | None:
    """The ends of all steps in nanoseconds since 1970, the start of the first one before them; None
    where they cannot be told.

    Marks that the program made (`hvscale.profiling.record.marks`) are taken as they are: the step
    after the last one has no end. Else steps.jsonl has durations only. Every step all-reduces the
    same bytes of gradients, so the message that completes a step's share ends before the step does,
    and the latest of these ends, each less its step's own time, places the steps on the clock.
    """
    events = recording.events
    marks = recording.steps.get(min(recording.ranks, default=0), np.empty(0, np.int64))
    if len(marks) > 1:
        return marks
    # Durations place steps only where none is missing between them.
    if log is None or log.warning is not None or recording.overwritten or "allreduce" not in events.operations:
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
    # Steps that do not hold their gradients were not found: the job's all-reduces are not its
    # steps'.
    found = np.abs(of_step[1 : steps + 1] - share) < share / 2
    return edges if found.mean() > 0.9 else None


def edges_by_rank(recording: Recording, edges_ns: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """The same steps as each rank marked them; a rank has `edges_ns`, those of the lowest one, for
    what it did not mark.

    Ranks enter a step at different times: one that is ahead sends its first messages before
    another's step begins.
    """
    found = {}
    for rank in recording.ranks:
        own = recording.steps.get(rank, edges_ns[:0])
        # A ring that wrapped holds the last steps of each rank, which need not begin with the same
        # one.
        first = int(np.argmin(np.abs(own - edges_ns[0]))) if recording.overwritten and len(own) else 0
        own = own[first : first + len(edges_ns)]
        found[rank] = np.maximum.accumulate(np.concatenate([own, edges_ns[len(own) :]]))
    return found
