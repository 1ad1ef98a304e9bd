"""Figures of each rank, of each node and of each local rank, and where in time each rank waits and
moves data.

The memory of the accumulators depends on the number of ranks, not on that of the calls.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.profiling.analyze.breakdown import RankRow
from hvscale.profiling.analyze.collectives import CollectiveAccumulator, Collectives
from hvscale.profiling.read.profile_file import StepSums
from hvscale.profiling.read.rank_nodes import local_ranks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TIME_BINS = 256  # of a time map, at most; at least half of them are in use
PIECE = 1 << 16  # calls summed at once, which stay in the processor's cache
FIRST_BIN_SHIFT = 10  # a bin starts with 2^10 ns


class Figures(BaseModel):
    """Sums over the ranks of a group (one rank, a node, a local rank).

    `calls`, `bytes` and `seconds` include all collectives, the others only matched ones: those with
    a call from every rank (null: unknown, see `unavailable`). `waiting_seconds`: until the last
    rank arrived. `transfer_seconds`: the rest, which moves data. `caused_waiting_seconds`: what
    other ranks waited while a rank of the group was the last. `expected_times_last`: `times_last`
    if each rank of a collective were the last one equally often.
    `algbw_gigabytes_per_second`: bytes over transfer time, in 10^9 bytes/s, without waiting and
    without bitwise reductions. `steps`: marked steps, and `step_seconds`: their mean time.
    """

    calls: int
    bytes: int
    seconds: float
    waiting_seconds: float | None
    transfer_seconds: float | None
    caused_waiting_seconds: float | None
    times_last: int | None
    expected_times_last: float | None
    algbw_gigabytes_per_second: float | None
    steps: int | None
    step_seconds: float | None


class RankFigures(Figures):
    """The figures of one rank. `local_rank`: its place among the ranks of its node, from 0."""

    rank: int
    node: str
    local_rank: int


class NodeFigures(Figures):
    """Sums over the recorded ranks of a node."""

    node: str
    ranks: list[int]


class LocalRankFigures(Figures):
    """Sums over the recorded ranks with one local rank, one of each node."""

    local_rank: int
    ranks: list[int]


@dataclass
class SummedCalls:
    """Sums over matched calls: arrays with an entry for each rank of the job."""

    calls: Integers
    waited_ns: Floats
    moved_ns: Floats
    data_bytes: Floats  # of messages with data, without bitwise reductions
    data_moved_ns: Floats  # the time of these
    caused_ns: Floats
    times_last: Integers
    expected_times_last: Floats


class RankSums(CollectiveAccumulator):
    """Sums matched calls by rank."""

    def __init__(self, np_of_job: int) -> None:
        self.ranks = np_of_job
        self.sums = SummedCalls(
            *(np.zeros(np_of_job, kind) for kind in (np.int64, *[np.float64] * 5, np.int64, np.float64))
        )

    def add(self, batch: Collectives) -> None:
        batch = batch.trusted
        self.sums.times_last += np.bincount(batch.last_rank, minlength=self.ranks)
        expected = 1 / batch.members
        for first in range(0, len(batch.calls), PIECE):
            self._add(batch, slice(first, first + PIECE), expected)

    def _add(self, batch: Collectives, piece: slice, expected: Floats) -> None:
        sums, calls = self.sums, batch.calls
        rank, waited_ns, collective = (
            calls.rank[piece].astype(np.int64),
            batch.waited_ns[piece],
            batch.collective[piece],
        )
        is_data = ~calls.bitwise[piece] & (calls.bytes[piece] > 0)
        kind = rank * 2 + is_data
        moved_ns = np.bincount(kind, calls.duration_ns[piece] - waited_ns, 2 * self.ranks).reshape(-1, 2)
        sums.calls += np.bincount(rank, minlength=self.ranks)
        sums.waited_ns += np.bincount(rank, waited_ns, self.ranks)
        sums.moved_ns += moved_ns.sum(axis=1)
        sums.data_bytes += np.bincount(kind, calls.bytes[piece], 2 * self.ranks)[1::2]
        sums.data_moved_ns += moved_ns[:, 1]
        sums.caused_ns += np.bincount(batch.last_rank[collective], waited_ns, self.ranks)
        sums.expected_times_last += np.bincount(rank, expected[collective], self.ranks)

    def result(self) -> SummedCalls:
        return self.sums


@dataclass
class TimeMap:
    """Seconds by rank and time: arrays (ranks, bins). Bin i starts at `start_ns + i * bin_ns`."""

    start_ns: int
    bin_ns: int
    waiting_seconds: Floats
    transfer_seconds: Floats

    def __len__(self) -> int:
        return int(self.waiting_seconds.shape[1])


class TimeMapSums(CollectiveAccumulator):
    """Spreads matched calls over bins of time, which double in width when the run outgrows them.

    The run's start and end need not be known. Edges of bins are multiples of their width, so that
    two neighbours merge into one.
    """

    def __init__(self, np_of_job: int, bins: int = TIME_BINS) -> None:
        self.ranks, self.bins = np_of_job, bins
        self.shift = FIRST_BIN_SHIFT
        self.first = self.last = -1  # used bins, as time >> shift; -1: no call yet
        self.seconds = np.zeros((2, np_of_job, bins))  # waiting, transfer; of the bins from `first`

    def add(self, batch: Collectives) -> None:
        batch = batch.trusted
        calls = batch.calls
        for first in range(0, len(calls), PIECE):
            piece = slice(first, first + PIECE)
            start = calls.start_ns[piece]
            self._add(calls.rank[piece].astype(np.int64), start, batch.waited_ns[piece], calls.duration_ns[piece])

    def _add(self, rank: Integers, start_ns: Integers, waited_ns: Integers, duration_ns: Integers) -> None:
        end_ns = start_ns + duration_ns
        self._make_room(int(start_ns.min()), int(end_ns.max()))
        low, high = int(start_ns.min()) >> self.shift, int(end_ns.max()) >> self.shift
        started, moved, ended = (
            self._after(rank, times, low, high) for times in (start_ns, start_ns + waited_ns, end_ns)
        )
        used = slice(low - self.first, high - self.first + 1)
        self.seconds[0, :, used] += (started - moved) / 1e9
        self.seconds[1, :, used] += (moved - ended) / 1e9

    def _make_room(self, first_ns: int, last_ns: int) -> None:
        """Moves and widens the bins until they contain both times."""
        if self.first < 0:
            self.first = self.last = first_ns >> self.shift
        while True:
            first, last = min(self.first, first_ns >> self.shift), max(self.last, last_ns >> self.shift)
            if last - first < self.bins:
                break
            self.seconds = _merged(self.seconds, self.first % 2)
            self.shift, self.first, self.last = self.shift + 1, self.first >> 1, self.last >> 1
        if first < self.first:
            self.seconds = np.roll(self.seconds, self.first - first, axis=2)
        self.first, self.last = first, last

    def _after(self, rank: Integers, times_ns: Integers, low: int, high: int) -> Floats:
        """Nanoseconds after the given times, in each of the bins `low` to `high`: (ranks, bins)."""
        bins, width = high - low + 1, 1 << self.shift
        cell = rank * bins + ((times_ns >> self.shift) - low)
        size = self.ranks * bins
        begun = np.bincount(cell, minlength=size).reshape(-1, bins).cumsum(axis=1)
        before = np.bincount(cell, times_ns & (width - 1), size).reshape(-1, bins)
        return begun * float(width) - before

    def result(self) -> TimeMap | None:
        """None without calls."""
        if self.first < 0:
            return None
        used = self.seconds[:, :, : self.last - self.first + 1]
        return TimeMap(self.first << self.shift, 1 << self.shift, used[0], used[1])


def _merged(seconds: Floats, odd: int) -> Floats:
    """Pairs of bins added. `odd`: 1 if the first bin is the second one of its pair."""
    bins = seconds.shape[2]
    moved = np.zeros((*seconds.shape[:2], bins + 2))
    moved[:, :, odd : odd + bins] = seconds
    found = np.zeros_like(seconds)
    pairs = moved[:, :, 0 : bins + 1 : 2] + moved[:, :, 1 : bins + 2 : 2]
    found[:, :, : pairs.shape[2]] = pairs[:, :, :bins]
    return found


def rank_figures(
    rows: Sequence[RankRow],
    ranks: Sequence[int],
    nodes: Mapping[int, str],
    summed: SummedCalls | None,
    step_marks: Mapping[int, Integers],
    step_sums: Mapping[int, StepSums],
) -> list[RankFigures]:
    """The figures of `ranks`, the recorded ones. `nodes`: of all ranks of the job.

    `summed` None: waiting is unknown. `step_marks`: by rank, the times of its marks, ascending.
    `step_sums`: of ranks whose marks are not all there.
    """
    totals: defaultdict[int, list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for row in rows:
        for place, value in enumerate((row.calls, row.bytes, row.seconds)):
            totals[row.rank][place] += value
    local = local_ranks(dict(nodes))
    found = []
    for rank in ranks:
        calls, size, seconds = totals[rank]
        marks = step_marks.get(rank, np.empty(0, np.int64))
        sums = step_sums.get(rank)
        steps = sums.steps if sums is not None else len(marks) - 1
        steps_ns = sums.duration_ns if sums is not None else int(marks[-1] - marks[0]) if steps > 0 else 0
        found.append(
            RankFigures(
                rank=rank,
                node=nodes[rank],
                local_rank=local[rank],
                calls=int(calls),
                bytes=int(size),
                seconds=seconds,
                **_matched_figures(summed, [rank]),
                steps=steps if steps > 0 else None,
                step_seconds=steps_ns / 1e9 / steps if steps > 0 else None,
            )
        )
    return found


def _matched_figures(summed: SummedCalls | None, ranks: list[int]) -> dict[str, Any]:
    names = ("waiting_seconds", "transfer_seconds", "caused_waiting_seconds", "times_last", "expected_times_last")
    if summed is None or not summed.calls[ranks].any():
        return {**dict.fromkeys(names), "algbw_gigabytes_per_second": None}
    moved_ns = float(summed.data_moved_ns[ranks].sum())
    values = (
        float(summed.waited_ns[ranks].sum()) / 1e9,
        float(summed.moved_ns[ranks].sum()) / 1e9,
        float(summed.caused_ns[ranks].sum()) / 1e9,
        int(summed.times_last[ranks].sum()),
        float(summed.expected_times_last[ranks].sum()),
    )
    bandwidth = float(summed.data_bytes[ranks].sum()) / moved_ns if moved_ns else None
    return {**dict(zip(names, values, strict=True)), "algbw_gigabytes_per_second": bandwidth}


def node_figures(by_rank: Sequence[RankFigures], summed: SummedCalls | None) -> list[NodeFigures]:
    """Sums by node, in the order of their first ranks."""
    groups: defaultdict[str, list[RankFigures]] = defaultdict(list)
    for row in by_rank:
        groups[row.node].append(row)
    return [NodeFigures(node=node, **_sums(rows, summed)) for node, rows in groups.items()]


def local_rank_figures(by_rank: Sequence[RankFigures], summed: SummedCalls | None) -> list[LocalRankFigures]:
    """Sums by local rank, ascending."""
    groups: defaultdict[int, list[RankFigures]] = defaultdict(list)
    for row in by_rank:
        groups[row.local_rank].append(row)
    return [LocalRankFigures(local_rank=local, **_sums(groups[local], summed)) for local in sorted(groups)]


def _sums(rows: list[RankFigures], summed: SummedCalls | None) -> dict[str, Any]:
    ranks = [row.rank for row in rows]
    stepped = [(row.steps, row.step_seconds) for row in rows if row.steps and row.step_seconds]
    steps = sum(count for count, _ in stepped)
    return {
        "ranks": ranks,
        "calls": sum(row.calls for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "seconds": sum(row.seconds for row in rows),
        **_matched_figures(summed, ranks),
        "steps": steps or None,
        "step_seconds": sum(count * seconds for count, seconds in stepped) / steps if steps else None,
    }
