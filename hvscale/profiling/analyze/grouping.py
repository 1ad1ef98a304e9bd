"""The calls of a recording, sorted by operation, range of sizes and rank, and the figures of each
group.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.profiling.analyze.bins import Bins
from hvscale.profiling.read.counters import Totals, latency_percentile
from hvscale.profiling.read.events import Events

# nccl-tests, doc/PERFORMANCE.md: what a link carries for each byte of the result, of n ranks.
# Operations not named here: 1.
BUSBW_TWICE = {"allreduce"}  # 2 (n - 1) / n
BUSBW_ONCE = {  # (n - 1) / n
    *("allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv"),
    *("alltoall", "alltoallv", "alltoallw", "reduce-scatter", "reduce-scatter-block"),
}


class Groups:
    """A group lies in one piece of the sorted calls, and so does that group over all ranks."""

    def __init__(self, operations: tuple[str, ...], bins: Bins, ranks: int) -> None:
        self.operations, self.bins, self.ranks = operations, bins, ranks
        self.keys = np.empty(0, np.int64)
        self.ends = np.empty(0, np.int64)

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
        piece = slice(int(self.ends[first - 1]) if first else 0, int(self.ends[last - 1]))
        figures = self._figures(self.operations[operation], piece)
        calls, size, seconds = figures["calls"], figures["bytes"], figures["seconds"]
        on_the_bus = figures.pop("bytes_on_the_bus")
        for name in ("calls", "bytes", "seconds", "bitwise_calls", "bitwise_seconds"):
            figures[name] *= ranks_per_event
        return {
            "operation": self.operations[operation],
            "bytes_min": bytes_min,
            "bytes_max": bytes_max,
            "share": 0.0,
            "mean_seconds": seconds / calls,
            "algbw_gigabytes_per_second": size / seconds / 1e9 if size and seconds else None,
            "busbw_gigabytes_per_second": on_the_bus / seconds / 1e9
            if size and seconds and on_the_bus is not None
            else None,
            **figures,
        }

    def _figures(self, operation: str, piece: slice) -> dict[str, Any]:
        """Calls, bytes, bytes_on_the_bus (None: not known), seconds, p50_seconds, p99_seconds,
        bitwise_calls, bitwise_seconds.
        """
        raise NotImplementedError


class EventGroups(Groups):
    """Of single events."""

    def __init__(self, events: Events, bins: Bins) -> None:
        super().__init__(events.operations, bins, int(events.rank.max(initial=0)) + 1)
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

    def _figures(self, operation: str, piece: slice) -> dict[str, Any]:
        durations, sizes, bitwise = self.duration_ns[piece], self.bytes[piece], self.bitwise[piece]
        p50, p99 = np.percentile(durations, (50, 99)) / 1e9
        return {
            "calls": len(sizes),
            "bytes": exact_sum(sizes),
            "bytes_on_the_bus": float(
                sizes.astype(np.float64) @ busbw_factors(operation, self.communicator_size[piece])
            ),
            "seconds": exact_sum(durations) / 1e9,
            "p50_seconds": float(p50),
            "p99_seconds": float(p99),
            "bitwise_calls": int(np.count_nonzero(bitwise)),
            "bitwise_seconds": float(durations @ bitwise) / 1e9,
        }


class TotalGroups(Groups):
    """Of counters: exact but for the percentiles, and for the bins where an edge splits a counter's
    class of sizes.
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
            "bytes_on_the_bus": float(sizes.astype(np.float64) @ factors) if np.isfinite(factors).all() else None,
            "seconds": exact_sum(durations) / 1e9,
            "p50_seconds": latency_percentile(latencies, 50),
            "p99_seconds": latency_percentile(latencies, 99),
            "bitwise_calls": exact_sum(totals.calls[chosen][bitwise]),
            "bitwise_seconds": exact_sum(durations[bitwise]) / 1e9,
        }


def exact_sum(values: NDArray[np.int64]) -> int:
    """A sum that cannot wrap, not even over the sizes of a damaged file."""
    return int(values.sum()) if int(values.max(initial=0)) * len(values) < 2**63 else sum(values.tolist())


def busbw_factors(operation: str, communicator_size: NDArray[np.int32]) -> NDArray[np.float64]:
    """busbw over algbw for each call, by the number of ranks in its communicator; NaN where that is
    0, not known.
    """
    ranks = np.where(communicator_size == 0, np.nan, communicator_size)
    operation = operation.removeprefix("i")  # non-blocking ones
    if operation in BUSBW_TWICE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in BUSBW_ONCE else np.ones(len(ranks))
