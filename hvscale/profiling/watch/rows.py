"""Rows by operation and message size, from counters."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.profiling.analyze.grouping import Bins, busbw_factors
from hvscale.profiling.read.counters import latency_percentile, operation_codes, size_limits
from hvscale.profiling.read.profile_file import POINT_TO_POINT, STEP
from hvscale.profiling.watch.document import WatchRow
from hvscale.profiling.watch.job_counters import Counted


def rows_of(
    counted: Counted, bins: Bins, *, point_to_point: bool, whole_run: bool, rank_seconds: float
) -> list[WatchRow]:
    """The rows of all collectives, or of sends and receives.

    Sorts operations by their total time, and the rows of an operation by size. `whole_run`: the
    figures of the period include all calls. `rank_seconds`: the period, summed over ranks.
    """
    codes = operation_codes(counted.total["key"])
    chosen = (np.isin(codes, POINT_TO_POINT) == point_to_point) & (codes != STEP) & (counted.total["calls"] > 0)
    total, codes = counted.total[chosen], codes[chosen]
    period = total if whole_run else counted.new
    bin_of_kind = _bins_of(total, bins)
    rows = []
    for code, number in sorted(set(zip(codes.tolist(), bin_of_kind.tolist(), strict=True))):
        in_row = (codes == code) & (bin_of_kind == number)
        calls = total[in_row]
        bytes_min, bytes_max = bins.limits(number)
        operation = counted.operations[code]
        rows.append(
            WatchRow(
                operation=operation,
                bytes_min=bytes_min,
                bytes_max=bytes_max,
                total_calls=int(calls["calls"].sum()),
                total_bytes=int(calls["bytes"].sum()),
                total_seconds=float(calls["duration_ns"].sum()) / 1e9,
                **_figures(period[np.isin(period["key"], calls["key"])], operation, rank_seconds),
            )
        )
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row.operation] = seconds.get(row.operation, 0.0) + row.total_seconds
    return sorted(rows, key=lambda row: (-seconds[row.operation], row.operation, row.bytes_min))


def _bins_of(entries: NDArray[Any], bins: Bins) -> NDArray[np.int64]:
    """The bin of each counter; where an edge splits its size class, that of its mean size."""
    smallest, largest = size_limits(entries)
    low, high = bins.index(smallest), bins.index(largest)
    mean = bins.index((entries["bytes"] // np.maximum(entries["calls"], 1)).astype(np.int64))
    return np.where(low == high, high, mean)


def _figures(entries: NDArray[Any], operation: str, rank_seconds: float) -> dict[str, Any]:
    """The figures of the period."""
    calls, size = int(entries["calls"].sum()), int(entries["bytes"].sum())
    seconds = float(entries["duration_ns"].sum()) / 1e9
    found: dict[str, Any] = {
        "calls_per_second": calls / rank_seconds if rank_seconds else 0.0,
        "gigabytes_per_second": size / rank_seconds / 1e9 if rank_seconds else 0.0,
        "share_of_time": seconds / rank_seconds if rank_seconds else 0.0,
    }
    if not calls:
        return found
    latencies = entries["latencies"].astype(np.int64).sum(axis=0)
    found["mean_seconds"] = seconds / calls
    found["p50_seconds"], found["p99_seconds"] = (latency_percentile(latencies, percent) for percent in (50, 99))
    if size and seconds:
        found["algbw_gigabytes_per_second"] = size / seconds / 1e9
        factors = busbw_factors(operation, (entries["key"] >> np.uint64(32)).astype(np.int32))
        if np.isfinite(factors).all():
            found["busbw_gigabytes_per_second"] = float(entries["bytes"].astype(np.float64) @ factors) / seconds / 1e9
    return found
