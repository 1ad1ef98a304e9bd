"""Write the profiles of a job that never ran, whose analysis is known.

`python benchmarks/generate_profiles.py --ranks 512 --calls 1000000 RUN` writes a run folder of 34
GB. RUN/expected.json has the figures that `hvscale breakdown --explain` must print.

The job: every PERIOD_NS all ranks make a call: an all-reduce, an all-reduce by MPI_BOR or a
broadcast, of one of SIZES. Every fourth call is between the ranks of a node, the others are between
all ranks. In each collective one rank arrives LATE_NS after the others, and all leave at the same
moment. A step begins every STEP_CALLS calls. The clocks of nodes differ, and their offsets are
exact.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.run_folder import Host, Library, RunFolder, RunRecord
from hvscale.profiling.read.counters import COUNTER, COUNTERS, LATENCIES, LIMITS_NS, counter_checks
from hvscale.profiling.read.profile_file import (
    BITWISE,
    COMMUNICATOR,
    COMMUNICATORS,
    HEADER,
    MAGIC,
    NO_COMMUNICATOR,
    RECORD,
    RECORDS_START,
    STEP,
    VERSION,
)
from hvscale.profiling.read.ring_file import check_words

BROADCAST, ALLREDUCE = 2, 13
NAMES = {BROADCAST: b"broadcast", ALLREDUCE: b"allreduce", STEP: b"step"}
WORLD, NODE = 0, 1  # communicators
NODE_RANKS = 8
SIZES = 4 << np.arange(0, 23, 2)  # bytes: 4 B to 16 MiB
BITWISE_EVERY, BROADCAST_EVERY = 16, 10
START_NS, PERIOD_NS, LATE_NS, TRANSFER_NS = 5_000_000_000, 100_000, 30_000, 2_000
JITTER_NS = 997
STEP_CALLS = 50
CLOCK_SKEW_NS = 3_600_000_000_000  # between the clocks of two nodes
BUFFERS = 20
IN_STEPS = 1 << 14  # of a counter's key


@dataclass(frozen=True)
class Job:
    """The calls of a job: arrays over the calls of a rank."""

    ranks: int
    calls: int

    @property
    def node_ranks(self) -> int:
        return min(NODE_RANKS, self.ranks)

    @property
    def number(self) -> NDArray[np.int64]:
        return np.arange(self.calls)

    @property
    def communicator(self) -> NDArray[np.int64]:
        return np.where(self.number % 4 == 3, NODE, WORLD)

    @property
    def ordinal(self) -> NDArray[np.int64]:
        return np.where(self.communicator == NODE, self.number // 4, self.number - self.number // 4)

    @property
    def bitwise(self) -> NDArray[np.bool_]:
        return np.asarray(self.number % BITWISE_EVERY == 0)

    @property
    def operation(self) -> NDArray[np.int64]:
        broadcasts = (self.number % BROADCAST_EVERY == 1) & ~self.bitwise
        return np.where(broadcasts, BROADCAST, ALLREDUCE)

    @property
    def bytes(self) -> NDArray[np.int64]:
        return np.where(self.bitwise, 8, SIZES[self.number % len(SIZES)])

    @property
    def transfer_ns(self) -> NDArray[np.int64]:
        """From the arrival of the last rank until all leave."""
        return TRANSFER_NS + self.bytes // 1024 + self.number * 7919 % JITTER_NS

    def is_late(self, rank: int) -> NDArray[np.bool_]:
        """Whether a rank is the last one, for each call."""
        of_node = self.ordinal % self.node_ranks == rank % self.node_ranks
        of_world = self.ordinal * 7 % self.ranks == rank
        late: NDArray[np.bool_] = np.where(self.communicator == NODE, of_node, of_world)
        return late

    @property
    def marks(self) -> int:
        return -(-self.calls // STEP_CALLS) + 1

    @property
    def start_ns(self) -> NDArray[np.int64]:
        """When the ranks that are not late arrive."""
        return START_NS + PERIOD_NS * (1 + self.number)


def expected(job: Job) -> dict[str, Any]:
    """What the analysis must find, from the definition of the job; written to RUN/expected.json.

    `rows`: for each operation and message size, sums over all ranks. `waiting`: for each operation.
    `late_ranks`: how often a rank is last, and the waiting that it causes. `exposed_share`: of the
    time of a step.
    """
    ranks, members = job.ranks, np.where(job.communicator == NODE, job.node_ranks, job.ranks)
    collectives = ranks // members  # at the same time
    rows, waiting = [], []
    total_ns = ranks * job.transfer_ns + LATE_NS * (members - 1) * collectives
    for operation in (ALLREDUCE, BROADCAST):
        name = NAMES[operation].decode()
        for size in np.unique(job.bytes).tolist():
            chosen = (job.operation == operation) & (job.bytes == size)
            if chosen.any():
                calls = int(chosen.sum()) * ranks
                ns = int(total_ns[chosen].sum())
                rows.append({"operation": name, "size": size, "calls": calls, "bytes": calls * size, "ns": ns})
        for bitwise in (False, True):
            chosen = (job.operation == operation) & (job.bitwise == bitwise)
            if chosen.any():
                one = {
                    "operation": name,
                    "bitwise": bitwise,
                    "calls": int(chosen.sum()) * ranks,
                    "waiting_ns": int((LATE_NS * (members - 1) * collectives)[chosen].sum()),
                    "transfer_ns": int((ranks * job.transfer_ns)[chosen].sum()),
                }
                waiting.append(one)
    late = []
    for rank in range(ranks):
        is_late = job.is_late(rank)
        if is_late.any():
            caused_ns = int((LATE_NS * (members - 1))[is_late].sum())
            late.append({"rank": rank, "times": int(np.count_nonzero(is_late)), "caused_ns": caused_ns})
    whole_steps = (job.marks - 1) * STEP_CALLS * PERIOD_NS * ranks
    return {
        "calls": ranks * job.calls,
        "matched": int(collectives.sum()),
        "exposed_share": int(total_ns.sum()) / whole_steps,
        "rows": rows,
        "waiting": waiting,
        "late_ranks": late,
    }


def write_job(run: RunFolder, job: Job, capacity: int | None = None) -> None:
    """Write the profile of every rank, and run.json.

    `capacity`: of each ring, by default large enough for all calls and step marks; 0: the calls are
    only counted.
    """
    if job.ranks < 2 or job.ranks % job.node_ranks:
        raise ValueError(f"the number of ranks must be 2 to {NODE_RANKS}, or a multiple of {NODE_RANKS}")
    started = datetime.now(UTC)
    begin_ns = int(started.timestamp() * 1e9)
    run.write(
        RunRecord(
            command=["generated"],
            np=job.ranks,
            library=Library(flavour="Open MPI", version="5.0"),
            host=Host(name="node0", kernel="-", cpu="-", cores=1, memory_bytes=1),
            working_directory="/",
            started_at=started,
            ended_at=started + timedelta(microseconds=(job.calls + 2) * PERIOD_NS / 1000),
            state="finished",
        )
    )
    (run.path / "expected.json").write_text(json.dumps(expected(job)))
    template = _records(job)
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(lambda rank: _write_rank(run, job, rank, template, capacity, begin_ns), range(job.ranks)):
            pass


def _records(job: Job) -> NDArray[Any]:
    """The calls and step marks of a rank that is never late, without clock skew and check."""
    calls, marks = np.zeros(job.calls, RECORD), np.zeros(job.marks, RECORD)
    calls["start_ns"], calls["duration_ns"] = job.start_ns, job.transfer_ns + LATE_NS
    calls["bytes"], calls["operation"], calls["flags"] = job.bytes, job.operation, job.bitwise * BITWISE
    calls["communicator"], calls["ordinal"] = job.communicator, job.ordinal
    calls["buffer_and_thread"] = 4096 * (1 + job.number % BUFFERS)
    calls["root"] = np.where(job.operation == BROADCAST, 0, -(2**31))
    marks["start_ns"] = START_NS + PERIOD_NS * (1 + STEP_CALLS * np.arange(job.marks)) - 1
    marks["operation"], marks["communicator"], marks["root"] = STEP, NO_COMMUNICATOR, -(2**31)
    both = np.insert(calls, np.minimum(STEP_CALLS * np.arange(job.marks), job.calls), marks)
    both["sequence"] = np.arange(1, len(both) + 1)
    return both


def _write_rank(
    run: RunFolder, job: Job, rank: int, template: NDArray[Any], capacity: int | None, begin_ns: int
) -> None:
    records = template.copy()
    is_call = records["operation"] != STEP
    late = np.zeros(len(records), np.int64)
    late[is_call] = LATE_NS * job.is_late(rank)
    records["start_ns"] += (late + CLOCK_SKEW_NS * (rank // job.node_ranks)).astype(np.uint64)
    records["duration_ns"] -= late.astype(np.uint64)
    counters, step_sums = _counters(job, records), _step_sums(job, records)
    ring = len(records) if capacity is None else capacity
    if not ring:
        records = records[:0]
    elif ring < len(records):
        kept = records[-ring:]
        records = kept[np.argsort((kept["sequence"] - np.uint64(1)) % np.uint64(ring))]
    records["check"] = check_words(records.view("<u8").reshape(len(records), RECORD.itemsize // 8)[:, :-1])
    head = _header(job, rank, len(template) if ring else 0, ring, begin_ns, step_sums)
    with (run.hvprof / f"rank-{rank:05d}.hvp").open("wb") as stream:
        for part in (head, _communicators(job, rank), counters, records):
            stream.write(part.tobytes())


def _header(
    job: Job, rank: int, recorded: int, capacity: int, begin_ns: int, step_sums: NDArray[np.uint64]
) -> NDArray[Any]:
    made = np.zeros(1, HEADER)
    fields = made[0]
    node = rank // job.node_ranks
    fields["magic"], fields["version"] = np.void(MAGIC), VERSION
    fields["header_bytes"], fields["record_bytes"] = RECORDS_START, RECORD.itemsize
    fields["rank"], fields["world_size"], fields["capacity"] = rank, job.ranks, capacity
    fields["pid"], fields["job"], fields["reserved_records"] = 1000 + rank, 1, recorded
    fields["monotonic_ns"], fields["realtime_ns"] = START_NS, begin_ns
    fields["clock_offset_ns"] = begin_ns - START_NS - CLOCK_SKEW_NS * node
    fields["flavour"], fields["host"] = b"Open MPI", f"node{node}".encode()
    for code, name in NAMES.items():
        fields["operations"][code] = name
    words = made.view("<u8")[:504].copy()
    made["check"] = check_words(words[None, :])
    fields["step_sums"][:-1], fields["step_sums"][-1] = step_sums, check_words(step_sums[None, :])[0]
    return made


def _step_sums(job: Job, records: NDArray[Any]) -> NDArray[np.uint64]:
    """The sums over the steps of a rank, which has one thread and ends with a mark."""
    steps, is_call = job.marks - 1, records["operation"] != STEP
    calls_ns = records["duration_ns"][is_call].sum()
    sent = records["bytes"][is_call & (records["flags"] & BITWISE == 0)].sum()
    return np.array([steps, steps * STEP_CALLS * PERIOD_NS, calls_ns, calls_ns, sent], np.uint64)


def _communicators(job: Job, rank: int) -> NDArray[Any]:
    made = np.zeros(COMMUNICATORS, COMMUNICATOR)
    node = rank // job.node_ranks
    made["identity"][:2], made["size"][:2] = (1, 1000 + node), (job.ranks, job.node_ranks)
    made["rank"][:2] = rank, rank % job.node_ranks
    made["check"][:2] = check_words(made[:2].view("<u8").reshape(2, -1)[:, :-1])
    return made


def _counters(job: Job, calls: NDArray[Any]) -> NDArray[Any]:
    """The counters of all calls and marks: by operation, size class, bitwise, and ranks.

    The first mark comes before all calls, so that all are counted in steps.
    """
    size_class = np.where(calls["bytes"] > 0, np.ceil(np.log2(np.maximum(calls["bytes"], 1))) + 1, 0)
    ranks = np.choose(np.minimum(calls["communicator"], 2), (job.ranks, job.node_ranks, 0))  # 2: of a mark
    key = calls["operation"].astype(np.int64) | size_class.astype(np.int64) << 6
    key |= (calls["flags"].astype(np.int64) & BITWISE) << 13 | IN_STEPS | 1 << 15 | ranks << 32
    durations = calls["duration_ns"].astype(np.int64)
    durations[np.flatnonzero(calls["operation"] == STEP)[1:]] = STEP_CALLS * PERIOD_NS
    keys, which = np.unique(key, return_inverse=True)
    made = np.zeros(COUNTERS, COUNTER)
    used = made[: len(keys)]
    used["key"] = keys
    for name, values in (
        ("calls", np.ones(len(calls))),
        ("bytes", calls["bytes"]),
        ("duration_ns", durations),
    ):
        used[name] = np.bincount(which, weights=values)
    latency = np.searchsorted(LIMITS_NS, durations, side="right") - 1
    used["latencies"] = np.bincount(which * LATENCIES + latency, minlength=used["latencies"].size).reshape(
        -1, LATENCIES
    )
    used["check"] = counter_checks(used)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--calls", type=int, default=1_000_000, help="of each rank")
    parser.add_argument("--capacity", type=int, help="records in each ring; 0: only counters. [default: all]")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder to create")
    asked = parser.parse_args()
    write_job(RunFolder.create(asked.run), Job(asked.ranks, asked.calls), asked.capacity)


if __name__ == "__main__":
    main()
