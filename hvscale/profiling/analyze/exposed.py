"""Exposed communication: the part of each step in which the program could only communicate."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.profiling.analyze.collectives import match_collectives
from hvscale.profiling.analyze.steps import LoggedSteps, first_mark
from hvscale.profiling.read.events import Events, EventSource, Part, Recording, Reducer
from hvscale.profiling.read.profile_file import StepSums
from hvscale.profiling.read.ring_file import INT64_MAX

Floats = NDArray[np.float64]
NO_THREAD = -2  # of a non-blocking call


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
    recorded `calls` or, if these were only counted or overwritten, by `counters`: then there are no
    single steps and no medians. A blocking call on the thread that marks steps is fully exposed. A
    call on another thread or a non-blocking call may overlap computation: only the upper bound
    includes it.
    """

    basis: Literal["measured", "calls", "counters"]
    ranks: list[int]
    step_count: int
    mean_step_seconds: float
    mean_share_at_least: float
    mean_share_at_most: float
    median_share_at_least: float | None
    median_share_at_most: float | None
    steps: list[StepExposure]


def exposure_without_calls(recording: Recording, log: LoggedSteps | None) -> ExposedCommunication | None:
    """The exposed communication that the program measured itself, or that counters bound.

    None without either.
    """
    if log is None or np.isnan(log.exposed_seconds).all():
        return exposure_of_counters(recording.step_sums) if recording.step_sums and not recording.has_calls else None
    measured = np.flatnonzero(~np.isnan(log.exposed_seconds))
    exposed = np.clip(log.exposed_seconds[measured], 0, log.seconds[measured])
    return _summary("measured", [0], log.steps[measured], log.seconds[measured], exposed, exposed)


def exposed_communication(
    recording: Recording, log: LoggedSteps | None, edges_ns: NDArray[np.int64] | None
) -> ExposedCommunication | None:
    """The exposed communication of a run; None if its steps are unknown. Reads all messages.

    `edges_ns`: the step edges of the lowest rank, from `step_edges`.
    """
    found = exposure_without_calls(recording, log)
    if found is not None or edges_ns is None or not recording.ranks:
        return found
    exposure = Exposure(recording, edges_ns)
    match_collectives(recording.events, [], [exposure])
    return exposure.result()


def exposure_of_counters(sums: dict[int, StepSums]) -> ExposedCommunication:
    """The exposed communication of a run of which only sums over its steps are known."""
    seconds, at_least, at_most = np.array(
        [(one.duration_ns, one.blocking_ns, min(one.collectives_ns, one.duration_ns)) for one in sums.values()],
        np.float64,
    ).sum(axis=0)
    steps = sum(one.steps for one in sums.values())
    return ExposedCommunication(
        basis="counters",
        ranks=sorted(sums),
        step_count=sums[min(sums)].steps,
        mean_step_seconds=seconds / steps / 1e9,
        mean_share_at_least=min(at_least / max(seconds, 1), 1),
        mean_share_at_most=at_most / max(seconds, 1),
        median_share_at_least=None,
        median_share_at_most=None,
        steps=[],
    )


class Exposure(Reducer["_Covered | None"]):
    """The bounds of the exposed communication in each step, from the calls of each rank.

    Takes the messages of a rank in blocks. Calls are sorted by their start within the last two
    blocks: threads and non-blocking calls mix them up only a little.
    """

    def __init__(self, recording: Recording, edges_ns: NDArray[np.int64]) -> None:
        """`edges_ns`: the step edges of the lowest rank, from `step_edges`."""
        lowest = min(recording.ranks)
        marked, threads = {}, {}
        for rank, marks in recording.steps.items():
            first = first_mark(recording, marks, edges_ns)
            own = slice(first, first + len(edges_ns))
            if len(marks[first:]) == len(edges_ns) or (len(marks) == len(edges_ns) + 1 and not recording.overwritten):
                marked[rank], threads[rank] = marks[own], recording.step_threads[rank][own]
        if lowest not in marked:
            marked, threads = {lowest: edges_ns}, {lowest: np.full(len(edges_ns), -1)}
        self._ranks = {rank: _RankExposure(marked[rank], threads[rank]) for rank in sorted(marked)}
        self._seconds = np.mean([np.diff(edges) for edges in marked.values()], axis=0) / 1e9
        self._at_least_ns, self._at_most_ns = np.zeros((2, len(self._seconds)))

    def begin(self, source: EventSource) -> None:
        self._blocking = np.array([not name.startswith("i") for name in source.operations], np.bool_)

    def reduce(self, part: Part, events: Events) -> "_Covered | None":
        rank = self._ranks.get(part.rank)
        if rank is None:
            return None
        end = events.start_ns + events.duration_ns
        thread = np.where(self._blocking[events.operation], events.thread, NO_THREAD)
        # The calls of another program of the rank, read at the same time, lie outside the steps.
        inside = (events.start_ns < rank.last_ns) & (end > rank.first_ns)
        calls = np.stack([events.start_ns, end, thread]).compress(inside, axis=1)
        return rank.cover(calls) if calls.size else None

    def add(self, part: Part, found: "_Covered | None") -> None:
        if found is not None:
            self._add(found)

    def result(self) -> ExposedCommunication:
        """A mean over the ranks, after all messages."""
        for rank in self._ranks.values():
            self._add(rank.finish())
        at_least, at_most = (found / 1e9 / len(self._ranks) for found in (self._at_least_ns, self._at_most_ns))
        numbers = np.arange(1, len(at_most) + 1)
        return _summary("calls", list(self._ranks), numbers, self._seconds, at_least, at_most)

    def _add(self, found: "_Covered") -> None:
        steps = slice(found.first, found.first + len(found.at_most_ns))
        self._at_least_ns[steps] += found.at_least_ns
        self._at_most_ns[steps] += found.at_most_ns


@dataclass(frozen=True)
class _Covered:
    """The covered time of the steps from number `first` on."""

    first: int
    at_least_ns: Floats
    at_most_ns: Floats


class _RankExposure:
    """The time of a rank's steps that its calls cover, from its calls in blocks."""

    def __init__(self, edges_ns: NDArray[np.int64], marking_thread: NDArray[np.int64]) -> None:
        self._edges, self._marking_thread = edges_ns, marking_thread
        self.first_ns, self.last_ns = int(edges_ns[0]), int(edges_ns[-1])
        self._threads = np.unique(marking_thread).tolist()
        # Start, end and thread of calls by their start, before which others may come.
        self._waiting = np.empty((3, 0), np.int64)
        self._until: dict[int | None, int] = {}  # by thread, None for all: the end of what is already counted

    def cover(self, calls: NDArray[np.int64]) -> _Covered:
        both = np.concatenate([self._waiting, calls], axis=1)
        both = both[:, np.argsort(both[0], kind="stable")]
        ready = both.shape[1] - calls.shape[1]
        self._waiting = both[:, ready:].copy()  # a view would keep all of it
        return self._cover(both[:, :ready])

    def finish(self) -> _Covered:
        """The rest, once all calls were given to `cover`."""
        return self._cover(self._waiting)

    def _cover(self, calls: NDArray[np.int64]) -> _Covered:
        start, end, thread = calls
        if not len(start):
            return _Covered(0, np.zeros(0), np.zeros(0))
        steps = len(self._edges) - 1
        first = min(max(int(np.searchsorted(self._edges, start[0], "right")) - 1, 0), steps - 1)
        last = min(max(int(np.searchsorted(self._edges, end.max())), first + 1), steps)
        edges, marking = self._edges[first : last + 1], self._marking_thread[first:last]
        at_most = self._covered(None, start, end, edges)
        at_least = np.zeros(len(at_most))
        for number in self._threads:
            own = thread == number
            at_least += self._covered(number, start[own], end[own], edges) * (marking == number)
        return _Covered(first, at_least, at_most)

    def _covered(
        self, thread: int | None, start: NDArray[np.int64], end: NDArray[np.int64], edges: NDArray[np.int64]
    ) -> Floats:
        """What the calls cover and those before them did not."""
        until = self._until.get(thread, -INT64_MAX)
        self._until[thread] = max(until, int(end.max(initial=-INT64_MAX)))
        return covered_ns(np.maximum(start, until), np.maximum(end, until), edges)


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
        step_count=len(numbers),
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
