"""Where the communication time of a run went: one row for each operation and range of message sizes."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from hvscale.profiling.bins import Bins, parse_bins
from hvscale.profiling.events import Events, Recording, no_events
from hvscale.profiling.sources import SOURCES
from hvscale.run_folder import RunFolder

# nccl-tests, doc/PERFORMANCE.md: what a link carries for each byte of the result, of n ranks. Operations not named here: 1.
BUSBW_TWICE = {"allreduce"}  # 2 (n - 1) / n
BUSBW_ONCE = {  # (n - 1) / n
    *("allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv"),
    *("alltoall", "alltoallv", "alltoallw", "reduce-scatter", "reduce-scatter-block"),
}


class Row(BaseModel):
    """The messages of one operation whose size lies in one bin, both limits inclusive.

    Bandwidths are total bytes over total time, in units of 10^9 bytes a second; None where there are no bytes or no time.
    """

    operation: str
    bytes_min: int
    bytes_max: int | None
    calls: int
    bytes: int
    seconds: float
    share: float  # of the seconds of all rows (of this rank)
    mean_seconds: float
    p50_seconds: float  # percentiles interpolate linearly between the two nearest calls
    p99_seconds: float
    algbw_gigabytes_per_second: float | None
    busbw_gigabytes_per_second: float | None


class RankRow(Row):
    """The same for one rank alone."""

    rank: int


class Breakdown(BaseModel):
    """The document that `hvscale breakdown --json` prints, by alias."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Annotated[Literal["hvscale/breakdown/1"], Field(alias="schema")] = "hvscale/breakdown/1"
    run: str
    source: str
    np: int
    ranks: list[int]
    rows: list[Row]
    rank_rows: list[RankRow]
    overwritten: int
    warnings: list[str]


def breakdown(run: RunFolder, bins: str = "study") -> Breakdown:
    """Tabulates a run by message size; `bins` as in `parse_bins`.

    Raises RequestError when `bins` is no list of sizes, or run.json or every profile of the run cannot be read.
    """
    ranges = parse_bins(bins)
    return tabulate(_read(run), ranges, str(run.path))


def _read(run: RunFolder) -> Recording:
    for read in SOURCES.values():
        recording = read(run)
        if recording is not None:
            return recording
    record = run.read()
    source = "horovod-timeline" if record.library.flavour.lower() == "gloo" else "hvprof"
    return Recording(source, no_events(), record.np, [])


def tabulate(recording: Recording, bins: Bins, run: str) -> Breakdown:
    """Rows over all ranks and for each rank; only bins that hold calls. The most expensive operation comes first, then by size."""
    events = recording.events
    warnings = list(recording.warnings)
    if not len(events):
        warnings.append("no collective was recorded: the job made none, or none that this profile can see")
    groups = events.operation.astype(np.int32) * len(bins) + bins.index(events.bytes).astype(np.int32)
    rows = [Row(**fields) for _, fields in _rows(events, groups, bins, recording.ranks_per_event)]
    groups += events.rank * np.int32(len(events.operations) * len(bins))
    rank_rows = [RankRow(rank=rank, **fields) for rank, fields in _rows(events, groups, bins, 1)]
    return Breakdown(
        run=run,
        source=recording.source,
        np=recording.np,
        ranks=recording.ranks,
        rows=_ordered(rows),
        rank_rows=[row for rank in recording.ranks for row in _ordered([row for row in rank_rows if row.rank == rank])],
        overwritten=recording.overwritten,
        warnings=warnings,
    )


RowKind = TypeVar("RowKind", bound=Row)


def _ordered(rows: list[RowKind]) -> list[RowKind]:
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row.operation] = seconds.get(row.operation, 0.0) + row.seconds
    total = sum(seconds.values())
    return [
        row.model_copy(update={"share": row.seconds / total if total else 0.0})
        for row in sorted(rows, key=lambda row: (-seconds[row.operation], row.operation, row.bytes_min))
    ]


def _rows(
    events: Events, groups: NDArray[np.int32], bins: Bins, ranks_per_event: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """A rank and a row's fields for each group that has events; all events of a group share operation and bin."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    ends = np.append(starts[1:], len(order))
    for start, end in zip(starts, ends, strict=True):
        members = order[start:end]
        first = members[0]
        operation = events.operations[events.operation[first]]
        bytes_min, bytes_max = bins.limits(int(groups[first]) % len(bins))
        sizes, durations = events.bytes[members], events.duration_ns[members]
        # Python's integers: a sum of sizes may pass 2^63 when files are odd, and must not wrap.
        total_bytes = int(sizes.sum(dtype=np.float64)) if sizes.max() > 2**63 // len(sizes) else int(sizes.sum())
        seconds = float(durations.sum(dtype=np.float64)) / 1e9
        on_the_bus = float(sizes @ busbw_factors(operation, events.communicator_size[members]))
        p50, p99 = np.percentile(durations, (50, 99)) / 1e9
        moved = bool(total_bytes and seconds)
        yield (
            int(events.rank[first]),
            {
                "operation": operation,
                "bytes_min": bytes_min,
                "bytes_max": bytes_max,
                "calls": len(members) * ranks_per_event,
                "bytes": total_bytes * ranks_per_event,
                "seconds": seconds * ranks_per_event,
                "share": 0.0,
                "mean_seconds": seconds / len(members),
                "p50_seconds": float(p50),
                "p99_seconds": float(p99),
                "algbw_gigabytes_per_second": total_bytes / seconds / 1e9 if moved else None,
                "busbw_gigabytes_per_second": on_the_bus / seconds / 1e9 if moved else None,
            },
        )


def busbw_factors(operation: str, communicator_size: NDArray[np.int32]) -> NDArray[np.float64]:
    """busbw over algbw for each call, by the number of ranks in its communicator."""
    ranks = communicator_size.astype(np.float64)
    if operation in BUSBW_TWICE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in BUSBW_ONCE else np.ones(len(ranks))
