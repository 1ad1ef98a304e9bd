"""Where the communication time of a run went: one row for each operation and range of message sizes."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from hvscale.profiling.bins import Bins, parse_bins
from hvscale.profiling.events import DETAILED, Events, Recording, no_events
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
    # Calls with a bitwise reduction carry no gradients: by them Horovod's ranks agree, every cycle, on what to send next.
    bitwise_calls: int
    bitwise_seconds: float


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
    return tabulate(read_recording(run), ranges, str(run.path))


def read_recording(run: RunFolder, detail: bool = False) -> Recording:
    """Every message of a run, with its details if asked for, from the first source that knows it.

    Raises RequestError when run.json or every profile cannot be read.
    """
    for read in ({**SOURCES, **DETAILED} if detail else SOURCES).values():
        recording = read(run)
        if recording is not None:
            return recording
    record = run.read()
    source = "horovod-timeline" if record.library.flavour.lower() == "gloo" else "hvprof"
    return Recording(source, no_events(), record.np, [])


def tabulate(recording: Recording, bins: Bins, run: str) -> Breakdown:
    """Rows over all ranks and for each rank; only bins that hold calls. The most expensive operation comes first, then by size."""
    warnings = list(recording.warnings)
    if not len(recording.events):
        warnings.append("no collective was recorded: the job made none, or none that this profile can see")
    groups = _Groups(recording.events, bins)
    rows = [Row(**groups.fields(first, last, recording.ranks_per_event)) for first, last in groups.of_all_ranks()]
    rank_rows: dict[int, list[RankRow]] = {rank: [] for rank in recording.ranks}
    for group in range(len(groups.keys)):
        rank = groups.rank(group)
        rank_rows.setdefault(rank, []).append(RankRow(rank=rank, **groups.fields(group, group + 1, 1)))
    return Breakdown(
        run=run,
        source=recording.source,
        np=recording.np,
        ranks=recording.ranks,
        rows=_ordered(rows),
        rank_rows=[row for rank in sorted(rank_rows) for row in _ordered(rank_rows[rank])],
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


class _Groups:
    """The events, sorted once by operation, bin and rank: a group lies in one piece, and so does that group over all ranks."""

    def __init__(self, events: Events, bins: Bins) -> None:
        self.bins, self.operations = bins, events.operations
        self.ranks = int(events.rank.max(initial=0)) + 1
        key = events.operation.astype(np.int64) * len(bins)
        key += bins.index(events.bytes)
        key *= self.ranks
        key += events.rank
        calls = np.bincount(key)
        self.keys = np.flatnonzero(calls)
        self.ends = np.cumsum(calls[self.keys])
        # Numbered without gaps the groups fit 16 bits, for which numpy sorts in linear time.
        number = np.zeros(len(calls), np.uint16 if len(self.keys) < 1 << 16 else np.uint32)
        number[self.keys] = np.arange(len(self.keys))
        order = np.argsort(number[key], kind="stable")
        del key
        self.duration_ns = events.duration_ns[order]
        self.bytes = events.bytes[order]
        self.communicator_size = events.communicator_size[order]
        self.bitwise = events.bitwise[order]

    def rank(self, group: int) -> int:
        return int(self.keys[group]) % self.ranks

    def of_all_ranks(self) -> Iterator[tuple[int, int]]:
        """The first group and the one after the last of each operation and bin."""
        firsts = np.flatnonzero(np.diff(self.keys // self.ranks, prepend=-1)).tolist()
        return pairwise([*firsts, len(self.keys)])

    def fields(self, first: int, last: int, ranks_per_event: int) -> dict[str, Any]:
        """A row's fields, of groups that share operation and bin."""
        operation, bin_index = divmod(int(self.keys[first]) // self.ranks, len(self.bins))
        bytes_min, bytes_max = self.bins.limits(bin_index)
        events = slice(int(self.ends[first - 1]) if first else 0, int(self.ends[last - 1]))
        durations, sizes, bitwise = self.duration_ns[events], self.bytes[events], self.bitwise[events]
        total_bytes, seconds = _exact_sum(sizes), _exact_sum(durations) / 1e9
        on_the_bus = float(
            sizes.astype(np.float64) @ busbw_factors(self.operations[operation], self.communicator_size[events])
        )
        p50, p99 = np.percentile(durations, (50, 99)) / 1e9
        moved = bool(total_bytes and seconds)
        return {
            "operation": self.operations[operation],
            "bytes_min": bytes_min,
            "bytes_max": bytes_max,
            "calls": len(sizes) * ranks_per_event,
            "bytes": total_bytes * ranks_per_event,
            "seconds": seconds * ranks_per_event,
            "share": 0.0,
            "mean_seconds": seconds / len(sizes),
            "p50_seconds": float(p50),
            "p99_seconds": float(p99),
            "algbw_gigabytes_per_second": total_bytes / seconds / 1e9 if moved else None,
            "busbw_gigabytes_per_second": on_the_bus / seconds / 1e9 if moved else None,
            "bitwise_calls": int(np.count_nonzero(bitwise)) * ranks_per_event,
            "bitwise_seconds": float(durations @ bitwise) / 1e9 * ranks_per_event,
        }


def _exact_sum(values: NDArray[np.int64]) -> int:
    """A sum that cannot wrap, not even over the sizes of a damaged file."""
    return int(values.sum()) if int(values.max()) * len(values) < 2**63 else sum(values.tolist())


def busbw_factors(operation: str, communicator_size: NDArray[np.int32]) -> NDArray[np.float64]:
    """busbw over algbw for each call, by the number of ranks in its communicator."""
    ranks = communicator_size.astype(np.float64)
    operation = operation.removeprefix("i")  # non-blocking ones
    if operation in BUSBW_TWICE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in BUSBW_ONCE else np.ones(len(ranks))
