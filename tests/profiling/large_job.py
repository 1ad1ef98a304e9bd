"""Writes the profiles of jobs of any number of ranks, with faults at known places."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.run_folder import Host, Library, RankEnd, RunFolder, RunRecord
from hvscale.profiling import Events, Recording
from hvscale.profiling.read.counters import COUNTER, LIMITS_NS, counter_checks
from hvscale.profiling.read.profile_file import (
    COMMUNICATOR,
    COMMUNICATORS,
    NO_COMMUNICATOR,
    RECORD,
    RECORDS_START,
    STEP,
)
from tests.profiling.synthetic import START_NS, header, signed, signed_header, size_class

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALLREDUCE, BARRIER = 13, 1
SIZES = (8 << 20, 1 << 20, 4096)  # of the all-reduces of a step, in bytes
COMPUTE_NS, MOVE_NS = 3_000_000, 2_000_000


@dataclass(frozen=True)
class LargeJob:
    """A job of data-parallel steps, each with an all-reduce of each of SIZES.

    `late`: ranks that arrive LATE_NS after the others. `slow`: ranks whose messages take longer by
    half.
    """

    ranks: int
    nodes: int = 1
    steps: int = 30
    late: frozenset[int] = field(default_factory=frozenset)
    slow: frozenset[int] = field(default_factory=frozenset)
    late_ns: int = 2_000_000
    seed: int = 1

    def node(self, rank: int) -> str:
        return f"node{rank * self.nodes // self.ranks:03d}"

    def times(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The start and the duration of each call in nanoseconds: arrays (ranks, calls)."""
        random = np.random.default_rng(self.seed)
        calls = self.steps * len(SIZES)
        ready = np.full(self.ranks, START_NS, np.int64)
        late = np.isin(np.arange(self.ranks), list(self.late)) * self.late_ns
        slowness = np.where(np.isin(np.arange(self.ranks), list(self.slow)), 1.5, 1.0)
        starts, durations = np.empty((self.ranks, calls), np.int64), np.empty((self.ranks, calls), np.int64)
        for call in range(calls):
            jitter = random.exponential(200_000, self.ranks)
            starts[:, call] = ready + COMPUTE_NS + jitter.astype(np.int64) + late
            moving = MOVE_NS * slowness * random.normal(1, 0.02, self.ranks)
            durations[:, call] = starts[:, call].max() + moving.astype(np.int64) - starts[:, call]
            ready = starts[:, call] + durations[:, call]
        return starts, durations

    def recording(self) -> Recording:
        """The job without its profiles, in memory."""
        starts, durations = self.times()
        calls = starts.shape[1]
        count = self.ranks * calls
        events = Events(
            operations=("allreduce",),
            rank=np.repeat(np.arange(self.ranks, dtype=np.int32), calls),
            operation=np.zeros(count, np.uint8),
            bytes=np.tile(np.array(SIZES), self.ranks * self.steps),
            start_ns=starts.reshape(-1),
            duration_ns=durations.reshape(-1),
            communicator_size=np.full(count, self.ranks, np.int32),
            bitwise=np.zeros(count, np.bool_),
            thread=np.zeros(count, np.int64),
            communicators=(1000,),
            communicator=np.zeros(count, np.int32),
            ordinal=np.tile(np.arange(calls, dtype=np.uint32), self.ranks),
            buffer=np.zeros(count, np.uint64),
        )
        ranks = list(range(self.ranks))
        return Recording("hvprof", events, self.ranks, ranks, clock_error_ns=dict.fromkeys(ranks, 0))

    def write(self, folder: Path, missing: frozenset[int] = frozenset()) -> RunFolder:
        """Write the run; the ranks in `missing` leave no profile."""
        run = RunFolder.create(folder)
        starts, durations = self.times()
        run.write(
            RunRecord(
                state="finished",
                command=["python", "train.py"],
                np=self.ranks,
                library=Library(flavour="Open MPI", version="5.0.11"),
                host=Host(name="login1", kernel="6.1", cpu="a processor", cores=64, memory_bytes=1 << 38),
                working_directory="/",
                started_at=NOW - timedelta(seconds=1),
                ended_at=NOW + timedelta(seconds=float((starts + durations).max() - START_NS) / 1e9 + 1),
                ranks=[RankEnd(rank=rank, host=self.node(rank), pid=1, exit_status=0) for rank in range(self.ranks)],
            )
        )
        for rank in set(range(self.ranks)) - missing:
            made = self._records(starts[rank], durations[rank])
            with (run.hvprof / f"rank-{rank:05d}.hvp").open("wb") as stream:
                stream.write(self._head(rank, len(made)))
                stream.write(counters(made, self.ranks))
                stream.seek(RECORDS_START)
                stream.write(made.tobytes())
        return run

    def _head(self, rank: int, recorded: int) -> bytes:
        made = header(recorded, 1 << 20, rank)
        made["world_size"], made["host"], made["job"] = self.ranks, self.node(rank).encode(), 77
        made["realtime_ns"] = int(NOW.timestamp()) * 10**9
        made["clock_offset_ns"] = made["realtime_ns"].astype(np.int64) - START_NS
        made["operations"][0, STEP] = b"step"
        table = np.zeros(COMMUNICATORS, COMMUNICATOR)
        table["identity"][0], table["size"][0] = 1000, self.ranks
        table[:1] = signed(table[:1])
        return signed_header(made).tobytes() + table.tobytes()

    def _records(self, starts: NDArray[np.int64], durations: NDArray[np.int64]) -> NDArray[Any]:
        calls, marks = len(starts), self.steps + 1
        made = np.zeros(calls + marks, RECORD)
        made["start_ns"][:calls], made["duration_ns"][:calls] = starts, durations
        made["bytes"][:calls] = np.tile(SIZES, self.steps)
        made["operation"][:calls] = ALLREDUCE
        made["ordinal"][:calls] = np.arange(calls)
        ends = (starts + durations)[len(SIZES) - 1 :: len(SIZES)]
        made["start_ns"][calls:] = np.concatenate([[START_NS], ends + 1])
        made["operation"][calls:] = STEP
        made["communicator"][calls:] = NO_COMMUNICATOR
        made = made[np.argsort(made["start_ns"], kind="stable")]
        made["sequence"] = np.arange(1, len(made) + 1)
        return signed(made)


def counters(calls: NDArray[Any], ranks: int) -> bytes:
    """The used counters for the calls of one thread on a communicator of so many ranks."""
    classes = np.array([size_class(size) for size in calls["bytes"].tolist()])
    kinds, which = np.unique(np.stack([calls["operation"], classes]), axis=1, return_inverse=True)
    made = np.zeros(kinds.shape[1], COUNTER)
    latency = np.searchsorted(LIMITS_NS, calls["duration_ns"], side="right") - 1
    for place, (operation, size) in enumerate(kinds.T.tolist()):
        chosen = which.reshape(-1) == place
        made["key"][place] = operation | size << 6 | 1 << 15 | ranks << 32
        made["calls"][place] = np.count_nonzero(chosen)
        for name in ("bytes", "duration_ns"):
            made[name][place] = calls[name][chosen].sum()
        made["latencies"][place] = np.bincount(latency[chosen], minlength=made["latencies"].shape[1])
    made["check"] = counter_checks(made)
    return made.tobytes()
