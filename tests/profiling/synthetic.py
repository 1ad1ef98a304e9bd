"""Synthetic profile files."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.profiling.read.counters import COUNTER, COUNTERS, LIMITS_NS, counter_checks
from hvscale.profiling.read.profile_file import (
    COMMUNICATOR,
    COMMUNICATORS,
    HEADER,
    MAGIC,
    RECORD,
    RECORDS_START,
    VERSION,
)
from hvscale.profiling.read.ring_file import check_words

OPERATIONS = {1: b"barrier", 2: b"broadcast", 7: b"allgather", 13: b"allreduce"}
SIZES = [1, 2, 64]  # ranks in each communicator
START_NS = 5_000_000_000


def header(recorded: int, capacity: int, rank: int = 0) -> NDArray[Any]:
    made = np.zeros(1, HEADER)
    fields = made[0]
    fields["magic"] = np.void(MAGIC)
    fields["version"] = VERSION
    fields["header_bytes"], fields["record_bytes"] = RECORDS_START, RECORD.itemsize
    fields["rank"], fields["world_size"], fields["capacity"] = rank, 2, capacity
    fields["reserved_records"] = recorded
    fields["monotonic_ns"], fields["realtime_ns"] = START_NS, 10**18
    fields["clock_offset_ns"] = 10**18 - START_NS
    fields["flavour"], fields["host"] = b"Open MPI", b"node1"
    for code, name in OPERATIONS.items():
        fields["operations"][code] = name
    return signed_header(made)


def signed_header(made: NDArray[Any]) -> NDArray[Any]:
    words = made.view("<u8")[:504].copy()
    words[7] = 0
    made["check"] = check_words(words[None, :])
    return made


def communicators() -> NDArray[Any]:
    made = np.zeros(COMMUNICATORS, COMMUNICATOR)
    made["identity"][: len(SIZES)] = 1000 + np.arange(len(SIZES))
    made["size"][: len(SIZES)] = SIZES
    made[: len(SIZES)] = signed(made[: len(SIZES)])
    return made


def size_class(size: int) -> int:
    return (size - 1).bit_length() + 1 if size else 0


def counters(counted: NDArray[Any]) -> NDArray[Any]:
    """The counters for the given records."""
    made = np.zeros(COUNTERS, COUNTER)
    positions: dict[int, int] = {}
    for record in counted:
        key = (
            int(record["operation"])
            | size_class(int(record["bytes"])) << 6
            | (int(record["flags"]) & 1) << 13
            | 1 << 15
        )
        thread, communicator = int(record["buffer_and_thread"]) >> 48, int(record["communicator"])
        ranks = SIZES[communicator] if communicator < len(SIZES) else 0
        entry = made[positions.setdefault(key | thread << 16 | ranks << 32, len(positions))]
        entry["calls"] += 1
        entry["bytes"] += record["bytes"]
        entry["duration_ns"] += record["duration_ns"]
        entry["latencies"][int(np.searchsorted(LIMITS_NS, record["duration_ns"], side="right")) - 1] += 1
    for key, position in positions.items():
        made[position]["key"] = key
    used = made[: len(positions)]
    used["check"] = counter_checks(used)
    return made


def head(recorded: int, capacity: int, rank: int = 0, counted: NDArray[Any] | None = None) -> bytes:
    """Everything before the first record; `counted`: the records that the counters include."""
    counts = np.zeros(COUNTERS, COUNTER) if counted is None else counters(counted)
    return header(recorded, capacity, rank).tobytes() + communicators().tobytes() + counts.tobytes()


def records(count: int, seed: int = 0) -> NDArray[Any]:
    random = np.random.default_rng(seed)
    made = np.zeros(count, RECORD)
    made["sequence"] = np.arange(1, count + 1)
    made["start_ns"] = START_NS + np.arange(count) * 1000
    made["duration_ns"] = random.integers(1, 10**9, count)
    made["bytes"] = random.integers(0, 100 << 20, count)
    made["communicator"] = random.integers(0, len(SIZES), count)
    made["operation"] = random.choice(list(OPERATIONS), count)
    made["buffer_and_thread"] = 99 << 48 | 4096
    return signed(made)


def signed(made: NDArray[Any]) -> NDArray[Any]:
    made["check"] = check_words(made.view("<u8").reshape(len(made), -1)[:, :-1])
    return made


def profile(count: int, rank: int = 0, seed: int = 0) -> bytes:
    """A trimmed file of `count` records."""
    made = records(count, seed)
    return head(count, 1 << 20, rank, made) + made.tobytes()
