"""Measured all-reduces: those of profiled runs, and those of `hvscale bench allreduce`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.launch.placements import PLACEMENTS
from hvscale.launch.placements._link_shaping import bits_per_second
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.read.events import Events

Floats = NDArray[np.float64]
MOST_MESSAGES = 4000  # of a run; more make the fit slower and not better


@dataclass(frozen=True)
class Samples:
    """All-reduces on one number of ranks: arrays of one length, and the agreements' seconds.

    `seconds`: from the last rank's call to the last rank's return. `idle_seconds`: from the end of
    the message before. `before_seconds`: from the end of the agreement or message before, in which
    Horovod copies into the fusion buffer; None if unknown. `ranks_per_core`: above 1 where ranks
    share cores. `bytes_per_second`: of a node's link, None if it is not limited. `algorithm`: that
    the run asked for, None for the library's own choice.
    """

    np: int
    nodes: int
    ranks_per_core: float
    bytes: Floats
    seconds: Floats
    idle_seconds: Floats
    agreements: Floats
    bytes_per_second: float | None
    library: str
    algorithm: str | None
    name: str
    before_seconds: Floats | None = None


def run_samples(run: RunFolder) -> Samples | None:
    """The all-reduces of all ranks in a profiled run; None without any.

    Raises RequestError if the run cannot be read.
    """
    record = run.read()
    events = read_recording(run, detail=True).events
    if record.np < 2 or len(events.ordinal) != len(events) or not len(events):
        return None
    first_start, last_start, end, sizes, bitwise = _collectives(events, record.np)
    del first_start
    order = np.argsort(end, kind="stable")
    seconds = (end - last_start)[order] / 1e9
    is_data = ~bitwise[order]
    before = np.diff(end[order], prepend=end[order][:1]) / 1e9 - seconds
    idle = np.diff(end[order][is_data], prepend=end[order][is_data][:1]) / 1e9 - seconds[is_data]
    chosen = np.random.default_rng(0).permutation(int(is_data.sum()))[:MOST_MESSAGES]
    return Samples(
        **_place(record),
        bytes=sizes[order][is_data][chosen].astype(np.float64),
        seconds=np.maximum(seconds[is_data][chosen], 1e-7),
        idle_seconds=np.maximum(idle[chosen], 0),
        agreements=seconds[~is_data],
        name=run.path.name,
        before_seconds=np.maximum(before[is_data][chosen], 0),
    )


def _place(record: RunRecord) -> dict[str, Any]:
    """The fields of Samples that run.json knows."""
    shared = PLACEMENTS.get(record.placement).on_this_machine
    nodes = len(record.nodes) or 1
    link = record.placement_settings.get("link")
    algorithm = [value for name, value in record.env_asked.items() if "allreduce_algorithm" in name.lower()]
    return {
        "np": record.np,
        "nodes": nodes,
        "ranks_per_core": record.np / (record.host.cores * (1 if shared else nodes)),
        "bytes_per_second": bits_per_second(str(link)) / 8 if link else None,
        "library": record.measured_library.name,
        "algorithm": algorithm[0] if algorithm else None,
    }


def _collectives(events: Events, ranks: int) -> tuple[NDArray[np.int64], ...]:
    """First start, last start, end, bytes and whether bitwise, of each all-reduce of all ranks."""
    names = np.array(events.operations)
    chosen = np.flatnonzero((events.communicator_size == ranks) & (names[events.operation] == "allreduce"))
    chosen = chosen[np.lexsort((events.rank[chosen], events.ordinal[chosen], events.communicator[chosen]))]
    key = np.stack([events.communicator[chosen].astype(np.int64), events.ordinal[chosen].astype(np.int64)])
    is_first = np.append(True, (np.diff(key) != 0).any(axis=0))[: len(chosen)]
    firsts = np.flatnonzero(is_first)
    if not len(firsts):
        return tuple(np.empty(0, np.int64) for _ in range(5))
    whole = np.diff(np.append(firsts, len(chosen))) == ranks
    start = events.start_ns[chosen]
    end = start + events.duration_ns[chosen]
    columns = (
        np.minimum.reduceat(start, firsts),
        np.maximum.reduceat(start, firsts),
        np.maximum.reduceat(end, firsts),
        events.bytes[chosen][firsts],
        events.bitwise[chosen][firsts],
    )
    return tuple(column[whole] for column in columns)
