"""The counters of a profile file: exact totals and latency histograms over all calls, including
those whose records were overwritten.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.profiling.read.ring_file import CHECK_FACTOR, INT64_MAX

LATENCIES = 147
COUNTERS = 1024
IN_ORDER = COUNTERS - 64  # a process begins these in order, and the others, one per operation, in any
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
ALL_SIZES = 127  # size class of a counter that many sizes share, because no other counter was left
SHORTEST_NS = 64  # one latency class below, then four classes per doubling
MODULUS = 1 << 64
MAX_BYTES, MAX_NS = 1 << 48, 1 << 43  # of one call, when a partly counted call is repaired
ATTEMPTS = 32  # to read a counter that its process is changing: one in a few reads is torn


def _factors() -> list[int]:
    factors = []
    for word in range(COUNTER.itemsize // 8):
        factor = CHECK_FACTOR * (word + 1) % MODULUS
        factors.append((factor ^ factor >> 32) * 0xBF58476D1CE4E5B9 % MODULUS | 1)
    return factors


FACTORS = _factors()


def counter_checks(entries: NDArray[Any]) -> NDArray[np.uint64]:
    """The correct `check` of each of `entries` (n, of dtype COUNTER).

    The factors are those of native/hvprof/counters.c.
    """
    words = np.ascontiguousarray(entries).view("<u8").reshape(len(entries), COUNTER.itemsize // 8)[:, :-1]
    checks: NDArray[np.uint64] = words @ np.array(FACTORS[:-1], np.uint64) + np.uint64(CHECK_FACTOR)
    return checks


def latency_limits_ns() -> NDArray[np.int64]:
    """The LATENCIES + 1 edges of the latency classes.

    The last class is open; its upper edge is nominal.
    """
    edges = [0] + [SHORTEST_NS * (4 + step) << power >> 2 for power in range(37) for step in range(4)]
    return np.array(edges[: LATENCIES + 1], np.int64)


LIMITS_NS = latency_limits_ns()


@dataclass(frozen=True)
class Totals:
    """Sums over calls: n entries, one per operation, size class, communicator size and rank."""

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
    in_steps: NDArray[np.bool_]  # after the first step mark

    def __len__(self) -> int:
        return len(self.rank)

    def of_ranks(self, ranks: Collection[int]) -> "Totals":
        """The entries of some ranks."""
        chosen = np.isin(self.rank, list(ranks))
        columns = {one.name: getattr(self, one.name)[chosen] for one in fields(self) if one.name != "operations"}
        return replace(self, **columns)


def read_torn_again(file: int, start: int, entries: NDArray[Any]) -> None:
    """Reads those of `entries` again that their process was changing; `start`: of the first one in
    the file. Raises OSError if the file cannot be read.
    """
    places = np.flatnonzero(entries["key"])
    for _ in range(ATTEMPTS):
        torn = places[entries["check"][places] != counter_checks(entries[places])]
        for place in torn.tolist():
            raw = os.pread(file, COUNTER.itemsize, start + place * COUNTER.itemsize)
            if len(raw) == COUNTER.itemsize:
                entries[place] = np.frombuffer(raw, COUNTER)[0]
        if not len(torn):
            break


def operation_codes(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The operation that each key names."""
    codes: NDArray[np.int64] = (keys & np.uint64(63)).astype(np.int64)
    return codes


def intact_counters(entries: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    """The intact entries in use, and the keys of the damaged ones, which may be damaged too.

    A killed process leaves at most one partly counted call per thread. That call is removed or
    completed.
    """
    used = entries[entries["key"] != 0]
    is_correct = used["check"] == counter_checks(used)
    repaired = [(entry, _repair(entry)) for entry in used[~is_correct]]
    found = np.concatenate([used[is_correct], *(whole for _, whole in repaired if whole is not None)])
    plausible = _is_plausible(found)
    unrepaired = np.array([entry["key"] for entry, whole in repaired if whole is None], np.uint64)
    return found[plausible], np.concatenate([found["key"][~plausible], unrepaired])


def _repair(entry: Any) -> NDArray[Any] | None:
    """The entry with its partly counted call removed or completed; None if its check stays wrong.

    counters.c updates the latency class, the calls, the bytes, the check and the duration, in this
    order.
    """
    repaired: NDArray[Any] = np.array([entry], COUNTER)
    ahead = (int(counter_checks(repaired)[0]) - int(repaired["check"][0])) % MODULUS
    duration = _quotient(-ahead, DURATION)
    if duration < MAX_NS:
        repaired["duration_ns"] += np.uint64(duration)
        return repaired
    for latency in np.flatnonzero(repaired["latencies"][0]).tolist():
        for calls in (0, 1):
            rest = ahead - FACTORS[FIRST_LATENCY + latency] - calls * FACTORS[CALLS]
            size = _quotient(rest, BYTES) if calls else rest % MODULUS
            if size == 0 or (calls and size <= min(MAX_BYTES, int(repaired["bytes"][0]))):
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
    """Whether the figures of each entry are consistent.

    A correct checksum alone does not prove that they were counted.
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
        & (entries["bytes"] <= INT64_MAX)
        & (entries["duration_ns"] <= INT64_MAX)
    )
    return plausible


def latency_percentile(latencies: NDArray[np.int64], percent: float) -> float:
    """The percentile of a latency histogram (LATENCIES,), in seconds.

    Assumes calls spread evenly within each class, which is at most 19 % wide.
    """
    counted = np.concatenate([[0], np.cumsum(latencies)]).astype(np.float64)
    return float(np.interp(counted[-1] * percent / 100, counted, LIMITS_NS.astype(np.float64))) / 1e9
