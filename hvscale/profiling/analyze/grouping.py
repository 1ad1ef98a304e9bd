"""Groups the calls of a recording by operation, message size and rank, and computes the figures of
each group.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.units import GIB, KIB, MIB
from hvscale.profiling.read.counters import Totals, latency_percentile
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


class Groups:
    """Calls sorted so that each group, on one rank and over all ranks, is one slice."""

    def __init__(self, operations: tuple[str, ...], bins: Bins, ranks: int) -> None:
        self.operations, self.bins, self.ranks = operations, bins, ranks
        self.keys = np.empty(0, np.int64)
        self.ends = np.empty(0, np.int64)

    def rank(self, group: int) -> int:
        return int(self.keys[group]) % self.ranks

    def across_ranks(self) -> Iterator[tuple[int, int]]:
        """For each operation and bin: its first group, and the one after its last."""
        firsts = np.flatnonzero(np.diff(self.keys // self.ranks, prepend=-1)).tolist()
        return pairwise([*firsts, len(self.keys)])

    def fields(self, first: int, last: int, ranks_per_event: int) -> dict[str, Any]:
        """The fields of a row for the groups `first` to `last` - 1, of one operation and bin."""
        operation, bin_index = divmod(int(self.keys[first]) // self.ranks, len(self.bins))
        bytes_min, bytes_max = self.bins.limits(bin_index)
        piece = slice(int(self.ends[first - 1]) if first else 0, int(self.ends[last - 1]))
        figures = self._figures(self.operations[operation], piece)
        calls, size, seconds = figures["calls"], figures["bytes"], figures["seconds"]
        bus_bytes = figures.pop("bus_bytes")
        for name in ("calls", "bytes", "seconds", "bitwise_calls", "bitwise_seconds"):
            figures[name] *= ranks_per_event
        return {
            "operation": self.operations[operation],
            "bytes_min": bytes_min,
            "bytes_max": bytes_max,
            "share": 0.0,
            "mean_seconds": seconds / calls,
            "algbw_gigabytes_per_second": size / seconds / 1e9 if size and seconds else None,
            "busbw_gigabytes_per_second": bus_bytes / seconds / 1e9
            if size and seconds and bus_bytes is not None
            else None,
            **figures,
        }

    def _figures(self, operation: str, piece: slice) -> dict[str, Any]:
        """The figures of a slice of calls.

        The keys are calls, bytes, bus_bytes (None: unknown), seconds, p50_seconds, p99_seconds,
        bitwise_calls and bitwise_seconds.
        """
        raise NotImplementedError


class EventGroups(Groups):
    """Groups of single events."""

    def __init__(self, events: Events, bins: Bins) -> None:
        super().__init__(events.operations, bins, int(events.rank.max(initial=0)) + 1)
        key = events.operation.astype(np.int64) * len(bins)
        key += bins.index(events.bytes)
        key *= self.ranks
        key += events.rank
        calls = np.bincount(key)
        self.keys = np.flatnonzero(calls)
        self.ends = np.cumsum(calls[self.keys])
        # Group numbers without gaps usually fit into 16 bits, which numpy sorts in linear time.
        number = np.zeros(len(calls), np.uint16 if len(self.keys) < 1 << 16 else np.uint32)
        number[self.keys] = np.arange(len(self.keys))
        order = np.argsort(number[key], kind="stable")
        del key
        self.duration_ns = events.duration_ns[order]
        self.bytes = events.bytes[order]
        self.communicator_size = events.communicator_size[order]
        self.bitwise = events.bitwise[order]

    def _figures(self, operation: str, piece: slice) -> dict[str, Any]:
        durations, sizes, bitwise = self.duration_ns[piece], self.bytes[piece], self.bitwise[piece]
        p50, p99 = np.percentile(durations, (50, 99)) / 1e9
        return {
            "calls": len(sizes),
            "bytes": exact_sum(sizes),
            "bus_bytes": float(sizes.astype(np.float64) @ busbw_factors(operation, self.communicator_size[piece])),
            "seconds": exact_sum(durations) / 1e9,
            "p50_seconds": float(p50),
            "p99_seconds": float(p99),
            "bitwise_calls": int(np.count_nonzero(bitwise)),
            "bitwise_seconds": float(durations @ bitwise) / 1e9,
        }


class TotalGroups(Groups):
    """Groups of counters.

    Figures are exact, except the percentiles and the bins whose edge splits a counter's size class.
    """

    def __init__(self, totals: Totals, bins: Bins) -> None:
        super().__init__(totals.operations, bins, int(totals.rank.max(initial=0)) + 1)
        low, high = bins.index(totals.bytes_min), bins.index(totals.bytes_max)
        mean = bins.index(totals.bytes // np.maximum(totals.calls, 1))
        self.split_classes = int(np.count_nonzero(low != high))
        key = (totals.operation.astype(np.int64) * len(bins) + np.where(low == high, high, mean)) * self.ranks
        key += totals.rank
        self.order = np.argsort(key, kind="stable")
        self.totals = totals
        self.keys, calls = np.unique(key, return_counts=True)
        self.ends = np.cumsum(calls)

    def _figures(self, operation: str, piece: slice) -> dict[str, Any]:
        totals, chosen = self.totals, self.order[piece]
        sizes, durations, bitwise = totals.bytes[chosen], totals.duration_ns[chosen], totals.bitwise[chosen]
        latencies = totals.latencies[chosen].sum(axis=0)
        factors = busbw_factors(operation, totals.communicator_size[chosen])
        return {
            "calls": exact_sum(totals.calls[chosen]),
            "bytes": exact_sum(sizes),
            "bus_bytes": float(sizes.astype(np.float64) @ factors) if np.isfinite(factors).all() else None,
            "seconds": exact_sum(durations) / 1e9,
            "p50_seconds": latency_percentile(latencies, 50),
            "p99_seconds": latency_percentile(latencies, 99),
            "bitwise_calls": exact_sum(totals.calls[chosen][bitwise]),
            "bitwise_seconds": exact_sum(durations[bitwise]) / 1e9,
        }


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
