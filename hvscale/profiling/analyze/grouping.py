"""Groups the calls of a recording by operation, message size and rank, and computes the figures of
each group.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.units import GIB, KIB, MIB
from hvscale.profiling.analyze.durations import CountedDurations, DurationHistogram, Durations, ExactDurations
from hvscale.profiling.read.counters import Totals
from hvscale.profiling.read.events import Events

UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB}
SIZE = re.compile(r"(\d{1,18})\s*([KMG]?)(?:i?B)?", re.IGNORECASE)

# The size ranges of "Scaling Single-Image Super-Resolution Training on Modern HPC Clusters"
# (Anthony et al., 2021), and larger sizes.
STUDY_EDGES = (128 * KIB, 16 * MIB, 32 * MIB, 64 * MIB)
POWERS_OF_TWO = tuple(1 << power for power in range(63))

# Bytes on a link per byte of the result with n ranks, from nccl-tests, doc/PERFORMANCE.md. All
# other operations: 1.
BUSBW_TWICE = {"allreduce"}  # 2 (n - 1) / n
BUSBW_ONCE = {  # (n - 1) / n
    *("allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv"),
    *("alltoall", "alltoallv", "alltoallw", "reduce-scatter", "reduce-scatter-block"),
}


@dataclass(frozen=True)
class Bins:
    """Ranges of message sizes, by their upper edges in bytes, each inclusive.

    Bin 0 holds messages without bytes; the last bin is open.
    """

    edges: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.edges) + 2

    def index(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bin of each size in bytes."""
        found = np.searchsorted(np.array(self.edges, np.int64), sizes, side="left") + 1
        return np.where(sizes == 0, 0, found)

    def limits(self, index: int) -> tuple[int, int | None]:
        """The smallest and the largest size in a bin; None for the largest of the open bin."""
        if index == 0:
            return 0, 0
        low = self.edges[index - 2] + 1 if index > 1 else 1
        return low, self.edges[index - 1] if index <= len(self.edges) else None


def parse_bins(text: str) -> Bins:
    """Parses `study`, `pow2`, or upper edges such as `1K,64K,4M` (K, M, G: powers of 1024).

    Raises RequestError for anything else.
    """
    if text == "study":
        return Bins(STUDY_EDGES)
    if text == "pow2":
        return Bins(POWERS_OF_TWO)
    edges = tuple(_parse_size(word, text) for word in text.split(","))
    if any(low >= high for low, high in zip((0, *edges), edges, strict=False)):
        raise RequestError(f"--bins {text}: sizes must be above 0 and in ascending order, as in 1K,64K,4M")
    return Bins(edges)


def _parse_size(word: str, text: str) -> int:
    match = SIZE.fullmatch(word.strip())
    size = int(match[1]) * UNITS[match[2].upper()] if match else None
    if size is None or size >= 1 << 63:
        raise RequestError(
            f"--bins {text}: {word.strip() or 'an empty word'} is not a size. Give study, pow2 or upper edges such as 1K,64K,4M"
        )
    return size


Key = tuple[int, int]  # operation and bin


@dataclass
class GroupSums:
    """The figures of a group of calls, which add up.

    `bus_bytes`: None if unknown. `durations`: for the percentiles.
    """

    calls: int
    bytes: int
    bus_bytes: float | None
    duration_ns: int
    bitwise_calls: int
    bitwise_ns: int
    durations: Durations

    def __iadd__(self, other: "GroupSums") -> "GroupSums":
        self.calls += other.calls
        self.bytes += other.bytes
        self.bus_bytes = None if None in (self.bus_bytes, other.bus_bytes) else self.bus_bytes + other.bus_bytes  # type: ignore[operator]
        self.duration_ns += other.duration_ns
        self.bitwise_calls += other.bitwise_calls
        self.bitwise_ns += other.bitwise_ns
        self.durations = self.durations.with_(other.durations)
        return self

    def row(self, ranks_per_event: int) -> dict[str, Any]:
        """The figures of a row of the breakdown."""
        seconds = self.duration_ns / 1e9
        p50, p99 = self.durations.percentiles()
        bus_bytes = self.bus_bytes if self.bytes and seconds else None
        return {
            "calls": self.calls * ranks_per_event,
            "bytes": self.bytes * ranks_per_event,
            "seconds": seconds * ranks_per_event,
            "share": 0.0,
            "mean_seconds": seconds / self.calls,
            "p50_seconds": p50,
            "p99_seconds": p99,
            "algbw_gigabytes_per_second": self.bytes / seconds / 1e9 if self.bytes and seconds else None,
            "busbw_gigabytes_per_second": None if bus_bytes is None else bus_bytes / seconds / 1e9,
            "bitwise_calls": self.bitwise_calls * ranks_per_event,
            "bitwise_seconds": self.bitwise_ns / 1e9 * ranks_per_event,
        }


def group_events(events: Events, bins: Bins, exact: bool) -> dict[Key, GroupSums]:
    """The figures of one rank's events by operation and bin.

    `exact`: keep every duration, so that figures of several ranks have exact percentiles, too.
    """
    key = events.operation.astype(np.int64) * len(bins)
    key += bins.index(events.bytes)
    calls = np.bincount(key)
    keys = np.flatnonzero(calls)
    # Group numbers without gaps usually fit into 16 bits, which numpy sorts in linear time.
    number = np.zeros(len(calls), np.uint16 if len(keys) < 1 << 16 else np.uint32)
    number[keys] = np.arange(len(keys))
    order = np.argsort(number[key], kind="stable")
    del key
    ends = np.cumsum(calls[keys]).tolist()
    all_durations, all_sizes = events.duration_ns[order], events.bytes[order]
    all_ranks, all_bitwise = events.communicator_size[order], events.bitwise[order]
    found = {}
    for group, first, last in zip(keys.tolist(), [0, *ends], ends, strict=False):
        operation, bin_index = divmod(group, len(bins))
        durations, sizes = all_durations[first:last], all_sizes[first:last]
        bitwise = all_bitwise[first:last]
        found[operation, bin_index] = GroupSums(
            calls=last - first,
            bytes=exact_sum(sizes),
            bus_bytes=_bus_bytes(events.operations[operation], sizes, all_ranks[first:last]),
            duration_ns=exact_sum(durations),
            bitwise_calls=int(np.count_nonzero(bitwise)),
            bitwise_ns=exact_sum(durations[bitwise]),
            durations=ExactDurations([durations]) if exact else DurationHistogram.of(durations),
        )
    return found


def group_totals(totals: Totals, bins: Bins) -> dict[int, dict[Key, GroupSums]]:
    """The figures of counters, by rank and then by operation and bin.

    They are exact, except the percentiles and the bins that `bin_warnings` is about.
    """
    low, high = bins.index(totals.bytes_min), bins.index(totals.bytes_max)
    mean = bins.index(totals.bytes // np.maximum(totals.calls, 1))
    which = np.where(low == high, high, mean)
    found: dict[int, dict[Key, GroupSums]] = {}
    columns = (totals.rank, totals.operation, which, totals.calls, totals.bytes, totals.duration_ns, totals.bitwise)
    for entry, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        rank, operation, bin_index, calls, size, duration_ns, bitwise = values
        one = slice(entry, entry + 1)
        figures = GroupSums(
            calls=calls,
            bytes=size,
            bus_bytes=_bus_bytes(totals.operations[operation], totals.bytes[one], totals.communicator_size[one]),
            duration_ns=duration_ns,
            bitwise_calls=calls * bitwise,
            bitwise_ns=duration_ns * bitwise,
            durations=CountedDurations(totals.latencies[entry]),
        )
        add_figures(found.setdefault(rank, {}), {(operation, bin_index): figures})
    return found


def bin_warnings(counted: Sequence[Totals], bins: Bins) -> list[str]:
    """Why counted calls may be in the bin of their mean size instead of their own."""
    unsized_calls, is_split = 0, False
    for totals in counted:
        has_all_sizes = (totals.bytes_min == 0) & (totals.bytes_max > 0)
        # The mean of one call, or of calls without bytes, is their size.
        unsized_calls += int(totals.calls[has_all_sizes & (totals.calls > 1) & (totals.bytes > 0)].sum())
        splits = bins.index(totals.bytes_min) != bins.index(totals.bytes_max)
        is_split |= bool((splits & ~has_all_sizes).any())
    warnings = []
    if unsized_calls:
        warnings.append(
            f"{unsized_calls} calls were counted without their sizes, because the profile had no counter left for their kind: "
            f"they count in the bin of their mean"
        )
    if is_split:
        warnings.append(
            "a bin edge that is not a power of two splits sizes that were counted together: they count in the bin of their "
            "mean"
        )
    return warnings


def add_figures(into: dict[Key, GroupSums], more: dict[Key, GroupSums]) -> None:
    for key, figures in more.items():
        if key in into:
            into[key] += figures
        else:
            into[key] = replace(figures)


def _bus_bytes(operation: str, sizes: NDArray[np.int64], ranks: NDArray[np.int32]) -> float | None:
    factors = busbw_factors(operation, ranks)
    return float(sizes.astype(np.float64) @ factors) if np.isfinite(factors).all() else None


def exact_sum(values: NDArray[np.int64]) -> int:
    """A sum that does not overflow, even for the sizes in a damaged file."""
    return int(values.sum()) if int(values.max(initial=0)) * len(values) < 2**63 else sum(values.tolist())


def busbw_factors(operation: str, communicator_size: NDArray[np.int32]) -> NDArray[np.float64]:
    """busbw over algbw for each call, by the number of ranks in its communicator.

    NaN for 0 ranks, which means unknown.
    """
    ranks = np.where(communicator_size == 0, np.nan, communicator_size)
    operation = operation.removeprefix("i")  # of a non-blocking call
    if operation in BUSBW_TWICE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in BUSBW_ONCE else np.ones(len(ranks))
