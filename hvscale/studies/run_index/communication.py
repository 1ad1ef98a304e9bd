"""The share of a run's time that its ranks spend in collectives, from hvprof's exact counters.

The counters lie in the fixed part of each profile file and hold every call, also those whose
records were overwritten. So the share costs the same however long the job was.
"""

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.profiling.read.counters import COUNTER, COUNTERS, IN_ORDER, intact_counters, read_torn_again
from hvscale.profiling.read.profile_file import COUNTERS_START, POINT_TO_POINT, STEP, read_header

OPERATION = np.uint64(63)  # the bits of a counter's key that hold its operation
BLOCK = 32  # counters in a read; most ranks use fewer


def communication_share(run: RunFolder, record: RunRecord, until: float) -> float | None:
    """The time of all ranks in collectives over the ranks' time from start to end.

    Includes waiting for late ranks, and communication that computation hides. `until`: the end of
    ranks that have none, in seconds since 1970. None if no profile of the run can be read.
    """
    seconds: dict[int, float] = {}
    for path in run.hvprof.glob("rank-*.hvp"):
        try:
            rank, own = _seconds_in_collectives(path)
        except (OSError, RequestError):
            continue
        seconds[rank] = seconds.get(rank, 0.0) + own
    lifetime = sum(_lifetimes(record, list(seconds), until))
    return sum(seconds.values()) / lifetime if lifetime > 0 else None


def _lifetimes(record: RunRecord, ranks: list[int], until: float) -> list[float]:
    """Seconds from start to end of each of `ranks`; those of the run where a rank's are unknown."""
    whole = (record.ended_at.timestamp() if record.ended_at else until) - record.started_at.timestamp()
    known = {
        end.rank: end.ended_at - end.started_at
        for end in record.ranks
        if end.started_at is not None and end.ended_at is not None
    }
    return [known.get(rank, whole) for rank in ranks]


def _seconds_in_collectives(path: Path) -> tuple[int, float]:
    """The rank that wrote a profile, and its time in collectives."""
    with open_regular(path) as stream:
        header = read_header(path, stream)
        used = _used_counters(stream)
        read_torn_again(stream.fileno(), COUNTERS_START, used)
        counters, _ = intact_counters(used)
    # The counter of step marks holds the time between them.
    collective = ~np.isin(counters["key"] & OPERATION, (*POINT_TO_POINT, STEP))
    return header.rank, float(counters["duration_ns"][collective].sum()) / 1e9


def _used_counters(stream: IO[bytes]) -> NDArray[Any]:
    """All counters, of which those that are surely unused are not read.

    On a full disk a process begins those that are not in order before the others are all in use.
    """
    counters = np.zeros(COUNTERS, COUNTER)

    def read(first: int, count: int) -> NDArray[Any]:
        stream.seek(COUNTERS_START + first * COUNTER.itemsize)
        raw = stream.read(count * COUNTER.itemsize)
        block = np.frombuffer(raw, COUNTER, count=len(raw) // COUNTER.itemsize)
        counters[first : first + len(block)] = block
        return block

    for first in range(0, IN_ORDER, BLOCK):
        block = read(first, BLOCK)
        if len(block) < BLOCK or block["key"][-1] == 0:
            break
    read(IN_ORDER, COUNTERS - IN_ORDER)
    return counters
