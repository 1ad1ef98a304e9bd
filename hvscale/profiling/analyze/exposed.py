"""Exposed communication: for how long of each step the program could do nothing else, because it
communicated.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.profiling.analyze.step_times import StepLog
from hvscale.profiling.read.events import Events, Recording

Floats = NDArray[np.float64]


class StepExposure(BaseModel):
    """One step, counted from 1: a mean over the ranks in `ExposedCommunication.ranks`.

    Between the two bounds lies what the profile cannot tell; they are equal where it can.
    """

    step: int
    seconds: float
    exposed_seconds_at_least: float
    exposed_seconds_at_most: float


class ExposedCommunication(BaseModel):
    """`basis`: the program measured it (`communication_seconds` in steps.jsonl), or the recorded
    calls bound it.

    By calls: a blocking call on the thread that marks steps is exposed in full. One that another
    thread makes, or that does not block, may go on beside computing: it counts at most. Shares are
    of a step's time.
    """

    basis: Literal["measured", "calls"]
    ranks: list[int]
    mean_step_seconds: float
    mean_share_at_least: float
    mean_share_at_most: float
    median_share_at_least: float
    median_share_at_most: float
    steps: list[StepExposure]


def exposed_communication(
    recording: Recording, log: StepLog | None, edges_ns: NDArray[np.int64] | None
) -> ExposedCommunication | None:
    """None where the run's steps are not known. `edges_ns`: the steps of the lowest rank, as
    `step_edges` gives them.
    """
    if log is not None and not np.isnan(log.exposed_seconds).all():
        told = np.flatnonzero(~np.isnan(log.exposed_seconds))
        exposed = np.clip(log.exposed_seconds[told], 0, log.seconds[told])
        return _summary("measured", [0], log.steps[told], log.seconds[told], exposed, exposed)
    if edges_ns is None or not recording.ranks:
        return None
    lowest = min(recording.ranks)
    marked = {rank: marks for rank, marks in recording.steps.items() if len(marks) == len(edges_ns)}
    if lowest not in marked:
        nobody = np.full(len(edges_ns), -1)
        ranks, bounds = [lowest], [_bounds(recording.events, lowest, edges_ns, nobody)]
    else:
        ranks = sorted(marked)
        bounds = [_bounds(recording.events, rank, marked[rank], recording.step_threads[rank]) for rank in ranks]
    seconds, at_least, at_most = np.mean(bounds, axis=0)
    return _summary("calls", ranks, np.arange(1, len(seconds) + 1), seconds, at_least, at_most)


def _bounds(
    events: Events, rank: int, edges_ns: NDArray[np.int64], marking_thread: NDArray[np.int64]
) -> tuple[Floats, Floats, Floats]:
    """Seconds of each step of a rank, and of them exposed: at least, at most."""
    calls = np.flatnonzero(events.rank == rank)
    calls = calls[np.argsort(events.start_ns[calls], kind="stable")]
    start, end = events.start_ns[calls], events.start_ns[calls] + events.duration_ns[calls]
    at_most = covered_ns(start, end, edges_ns)
    blocking = np.array([not name.startswith("i") for name in events.operations], bool)[events.operation[calls]]
    at_least = np.zeros(len(at_most))
    for thread in np.unique(marking_thread):
        own = blocking & (events.thread[calls] == thread)
        at_least += covered_ns(start[own], end[own], edges_ns) * (marking_thread[:-1] == thread)
    return np.diff(edges_ns) / 1e9, at_least / 1e9, at_most / 1e9


def covered_ns(start: NDArray[np.int64], end: NDArray[np.int64], edges_ns: NDArray[np.int64]) -> Floats:
    """How much of each span between two edges lies in one of the intervals at least; `start`
    ascends.
    """
    if not len(start):
        return np.zeros(len(edges_ns) - 1)
    latest = np.maximum.accumulate(end)
    begins_anew = np.append(True, start[1:] > latest[:-1])
    pieces_start, pieces_end = start[begins_anew], latest[np.append(np.flatnonzero(begins_anew)[1:] - 1, len(end) - 1)]
    # Relative to the first edge: nanoseconds since 1970 have more digits than a float.
    knots = np.stack([pieces_start, pieces_end], axis=1).reshape(-1) - edges_ns[0]
    before = np.concatenate([[0], np.cumsum(pieces_end - pieces_start)])
    covered = np.repeat(before, 2)[1:-1]
    return np.diff(np.interp(edges_ns - edges_ns[0], knots, covered))


def _summary(
    basis: Literal["measured", "calls"],
    ranks: list[int],
    numbers: NDArray[np.int64],
    seconds: Floats,
    at_least: Floats,
    at_most: Floats,
) -> ExposedCommunication:
    shares = [bound / np.maximum(seconds, 1e-9) for bound in (at_least, at_most)]
    return ExposedCommunication(
        basis=basis,
        ranks=ranks,
        mean_step_seconds=float(seconds.mean()),
        # Of the whole time, so that long steps count for what they take.
        mean_share_at_least=float(at_least.sum() / max(seconds.sum(), 1e-9)),
        mean_share_at_most=float(at_most.sum() / max(seconds.sum(), 1e-9)),
        median_share_at_least=float(np.median(shares[0])),
        median_share_at_most=float(np.median(shares[1])),
        steps=[
            StepExposure(step=step, seconds=length, exposed_seconds_at_least=low, exposed_seconds_at_most=high)
            for step, length, low, high in zip(
                numbers.tolist(), seconds.tolist(), at_least.tolist(), at_most.tolist(), strict=True
            )
        ],
    )
