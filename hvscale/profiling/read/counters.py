"""The counters of a profile file: exact totals and latency histograms of every call, even if
records were overwritten.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.profiling.read.ring_file import LARGEST, ODD

LATENCIES = 147
COUNTERS = 1024
COUNTER = np.dtype(
    [
        ("key", "<u8"),
        ("calls", "<u8"),
        ("bytes", "<u8"),
        ("duration_ns", "<u8"),
        ("latencies", "<u8", (LATENCIES,)),
        ("check", "<u8"),
    ]
)
CALLS, BYTES, DURATION, FIRST_LATENCY = 1, 2, 3, 4  # words of a counter
ALL_SIZES = 127  # size class of a counter for calls that found no counter of their own
SHORTEST_NS = 64  # one latency class below it, then four for each doubling
MODULUS = 1 << 64
MOST_BYTES, MOST_NS = 1 << 48, 1 << 43  # of one call, when an interrupted count is repaired


def _factors() -> list[int]:
    factors = []
    for word in range(COUNTER.itemsize // 8):
        factor = ODD * (word + 1) % MODULUS
        factors.append((factor ^ factor >> 32) * 0xBF58476D1CE4E5B9 % MODULUS | 1)
    return factors


FACTORS = _factors()


def counter_checks(entries: NDArray[Any]) -> NDArray[np.uint64]:
    """The correct `check` of each of `entries` (n, of dtype COUNTER); counters.c has the same
    factors.
    """
    words = np.ascontiguousarray(entries).view("<u8").reshape(len(entries), COUNTER.itemsize // 8)[:, :-1]
    checks: NDArray[np.uint64] = words @ np.array(FACTORS[:-1], np.uint64) + np.uint64(ODD)
    return checks


def latency_limits_ns() -> NDArray[np.int64]:
    """The LATENCIES + 1 edges of the latency classes; the last class is open, and its upper edge is
    nominal.
    """
    edges = [0] + [SHORTEST_NS * (4 + step) << power >> 2 for power in range(37) for step in range(4)]
    return np.array(edges[: LATENCIES + 1], np.int64)


LIMITS_NS = latency_limits_ns()


@dataclass(frozen=True)
class Totals:
    """Sums over calls: n entries, each of one operation, size class, communicator size and rank."""

    operations: tuple[str, ...]  # names; `operation` is an index into them
    rank: NDArray[np.int32]
    operation: NDArray[np.uint8]
    bytes_min: NDArray[np.int64]  # limits of the class, both inclusive
    bytes_max: NDArray[np.int64]
    bitwise: NDArray[np.bool_]
    communicator_size: NDArray[np.int32]  # 0: unknown
    calls: NDArray[np.int64]
    bytes: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    latencies: NDArray[np.int64]  # (n, LATENCIES): calls by their duration

    def __len__(self) -> int:
        return len(self.rank)


def sound_counters(entries: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """The intact entries of a file that are in use, and the number of damaged ones.

    A killed process may have left a call half counted in one entry for each thread: that call is
    taken out again, or counted to its end.
    """
    used = entries[entries["key"] != 0]
    repaired = [_repair(entry) for entry in used[used["check"] != counter_checks(used)]]
    good = [used[used["check"] == counter_checks(used)], *(entry for entry in repaired if entry is not None)]
    found = np.concatenate(good)
    sound = _is_plausible(found)
    return found[sound], len(used) - int(np.count_nonzero(sound))


def _repair(entry: Any) -> NDArray[Any] | None:
    """The entry with a partly counted call removed or completed; None if that does not explain its
    check.

    counters.c adds, in this order, to the class of latency, the calls, the bytes, the check and the
    duration.
    """
    repaired: NDArray[Any] = np.array([entry], COUNTER)
    ahead = (int(counter_checks(repaired)[0]) - int(repaired["check"][0])) % MODULUS
    duration = _quotient(-ahead, DURATION)
    if duration < MOST_NS:
        repaired["duration_ns"] += np.uint64(duration)
        return repaired
    for latency in np.flatnonzero(repaired["latencies"][0]).tolist():
        for calls in (0, 1):
            rest = ahead - FACTORS[FIRST_LATENCY + latency] - calls * FACTORS[CALLS]
            size = _quotient(rest, BYTES) if calls else rest % MODULUS
            if size == 0 or (calls and size <= min(MOST_BYTES, int(repaired["bytes"][0]))):
                repaired["latencies"][0, latency] -= np.uint64(1)
                repaired["calls"] -= np.uint64(calls)
                repaired["bytes"] -= np.uint64(size)
                return repaired
    return None


def _quotient(value: int, word: int) -> int:
    return value * pow(FACTORS[word], -1, MODULUS) % MODULUS


def size_limits(entries: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The smallest and the largest size in the size class of each of `entries`."""
    classes = (entries["key"] >> np.uint64(6) & np.uint64(127)).astype(np.int64)
    power = np.clip(classes - 1, 0, 62)
    largest = np.where(classes == 0, 0, np.where(classes > 63, np.iinfo(np.int64).max, 1 << power))
    smallest = np.where(classes < 2, classes, (1 << np.clip(classes - 2, 0, 62)) + 1)
    return np.where(classes == ALL_SIZES, 0, smallest), largest


def _is_plausible(entries: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether the figures of an entry are consistent: a checksum alone does not prove that they
    were counted.
    """
    smallest, largest = (limits.astype(np.float64) for limits in size_limits(entries))
    calls, size, duration = (entries[name].astype(np.float64) for name in ("calls", "bytes", "duration_ns"))
    at_least = entries["latencies"].astype(np.float64) @ LIMITS_NS[:-1].astype(np.float64)
    rounding = 1 + 1e-9
    plausible: NDArray[np.bool_] = (
        (entries["latencies"].sum(axis=1) == entries["calls"])
        & (calls * smallest <= size * rounding)
        & (size <= calls * largest * rounding)
        & (at_least <= duration * rounding)
        & (entries["bytes"] <= LARGEST)
        & (entries["duration_ns"] <= LARGEST)
    )
    return plausible


def latency_percentile(latencies: NDArray[np.int64], percent: float) -> float:
    """The percentile in seconds of a histogram (LATENCIES,), with calls spread evenly within each
    class (at most 19 % wide).
    """
    counted = np.concatenate([[0], np.cumsum(latencies)]).astype(np.float64)
    return float(np.interp(counted[-1] * percent / 100, counted, LIMITS_NS.astype(np.float64))) / 1e9
