"""Exposed communication: the part of each step in which the program could only communicate."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.profiling.analyze.steps import StepLog
from hvscale.profiling.read.events import Events, Recording

Floats = NDArray[np.float64]


class StepExposure(BaseModel):
    """One step, counted from 1: a mean over the ranks in `ExposedCommunication.ranks`.

    The true value lies between the two bounds. They are equal if the profile determines it.
    """

    step: int
    seconds: float
    exposed_seconds_at_least: float
    exposed_seconds_at_most: float


class ExposedCommunication(BaseModel):
    """The exposed communication of a run; shares are fractions of a step's time.

    `basis`: `measured` by the program (`communication_seconds` in steps.jsonl), or bounded by the
    recorded `calls`. A blocking call on the thread that marks steps is fully exposed. A call on
    another thread or a non-blocking call may overlap computation: only the upper bound includes it.
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
    """The exposed communication of a run; None if its steps are unknown.

    `edges_ns`: the step edges of the lowest rank, from `step_edges`.
    """
    if log is not None and not np.isnan(log.exposed_seconds).all():
        measured = np.flatnonzero(~np.isnan(log.exposed_seconds))
        exposed = np.clip(log.exposed_seconds[measured], 0, log.seconds[measured])
        return _summary("measured", [0], log.steps[measured], log.seconds[measured], exposed, exposed)
    if edges_ns is None or not recording.ranks:
        return None
    lowest = min(recording.ranks)
    marked = {rank: marks for rank, marks in recording.steps.items() if len(marks) == len(edges_ns)}
    if lowest not in marked:
        no_thread = np.full(len(edges_ns), -1)
        ranks, bounds = [lowest], [_bounds(recording.events, lowest, edges_ns, no_thread)]
    else:
        ranks = sorted(marked)
        bounds = [_bounds(recording.events, rank, marked[rank], recording.step_threads[rank]) for rank in ranks]
    seconds, at_least, at_most = np.mean(bounds, axis=0)
    return _summary("calls", ranks, np.arange(1, len(seconds) + 1), seconds, at_least, at_most)


def _bounds(
    events: Events, rank: int, edges_ns: NDArray[np.int64], marking_thread: NDArray[np.int64]
) -> tuple[Floats, Floats, Floats]:
    """For each step of a rank: its seconds, and the lower and upper bound of the exposed ones."""
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
    """The time between each two edges that the intervals cover, in nanoseconds.

    `start` must ascend; intervals may overlap.
    """
    if not len(start):
        return np.zeros(len(edges_ns) - 1)
    latest = np.maximum.accumulate(end)
    after_gap = np.append(True, start[1:] > latest[:-1])
    pieces_start, pieces_end = start[after_gap], latest[np.append(np.flatnonzero(after_gap)[1:] - 1, len(end) - 1)]
    # Relative to the first edge: nanoseconds since 1970 need more digits than a float has.
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
        # Weighted by the length of each step.
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
