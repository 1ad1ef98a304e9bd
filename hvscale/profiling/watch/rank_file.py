"""Reads the counters and the newest records of a profile file while its process writes them.

Each read opens the file again: over NFS, opening asks the server whether the cached pages are
current.
"""

import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.profiling.read.counters import COUNTER, COUNTERS, IN_ORDER, intact_counters, read_torn_again
from hvscale.profiling.read.profile_file import (
    COMMUNICATOR,
    COMMUNICATORS,
    COUNTERS_START,
    HEADER,
    NO_COMMUNICATOR,
    RECORD,
    RECORDS_START,
    STEP,
    Header,
    read_header,
)
from hvscale.profiling.read.ring_file import INT64_MAX, has_correct_check, has_valid_times, is_in_place

# Of a counter's key: operation, size class, bitwise and ranks; not the thread.
KIND = np.uint64(0xFFFF_FFFF_0000_0000 | 1 << 13 | 127 << 6 | 63)
FIRST_READ = 32  # entries of a table; most jobs use fewer
MORE_COUNTERS = 8  # beyond those known, to see new ones


@dataclass(frozen=True)
class Reading:
    """The state of one file."""

    header: Header
    # Of dtype COUNTER: sums over threads, one entry for each kind (the masked key), ascending.
    counters: NDArray[Any]
    damaged_counters: int


def by_newest_steps(header: Header) -> tuple[int, bool, int]:
    """Sorts the lowest rank first, and of its programs the last one that has marked steps."""
    return header.rank, header.steps is None, -header.started_ns


class RankFile:
    """A profile file that may still be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.used_counters = 0
        self.communicators = np.empty(0, COMMUNICATOR)  # those in use; they do not change

    def read(self) -> Reading:
        """Read the header and the counters.

        Raises RequestError if the header is damaged or the file is too short, OSError if it cannot
        be read.
        """
        with open_regular(self.path) as stream:
            file = stream.fileno()
            header = read_header(self.path, BytesIO(os.pread(file, HEADER.itemsize, 0)))
            entries = self._read_counters(file)
        intact, damaged = intact_counters(entries)
        return Reading(header, _by_kind(intact), len(damaged))

    def _read_counters(self, file: int) -> NDArray[Any]:
        """All counters in use, and some unused ones."""
        count = min(IN_ORDER, max(FIRST_READ, self.used_counters + MORE_COUNTERS))
        entries = self._read_entries(file, 0, count)
        while count < IN_ORDER and entries["key"][-1]:
            count = min(IN_ORDER, 2 * count)
            entries = self._read_entries(file, 0, count)
        self.used_counters = int(np.flatnonzero(entries["key"]).max(initial=0))
        # On a full disk a process begins these before the others are all in use.
        return np.concatenate([entries, self._read_entries(file, IN_ORDER, COUNTERS - IN_ORDER)])

    def _read_entries(self, file: int, first: int, count: int) -> NDArray[Any]:
        start = COUNTERS_START + first * COUNTER.itemsize
        raw = os.pread(file, count * COUNTER.itemsize, start)
        if len(raw) < count * COUNTER.itemsize:
            raise RequestError(f"{self.path} is truncated: it ends before its first record")
        entries = np.frombuffer(raw, COUNTER).copy()
        read_torn_again(file, start, entries)
        return entries

    def newest_records(self, header: Header, count: int) -> NDArray[Any]:
        """The intact ones of the newest `count` records, of dtype RECORD.

        Raises OSError if the file cannot be read.
        """
        if not header.capacity:
            return np.empty(0, RECORD)
        with open_regular(self.path) as stream:
            file = stream.fileno()
            self._read_communicators(file)
            reserved = int.from_bytes(os.pread(file, 8, HEADER.fields["reserved_records"][1]), "little")  # type: ignore[index]
            count = min(count, reserved, header.capacity)
            first = (reserved - count) % header.capacity
            until_end = min(count, header.capacity - first)
            found = [
                self._read_slots(file, header, first, until_end),
                self._read_slots(file, header, 0, count - until_end),
            ]
        records = np.concatenate(found)
        return records[records["sequence"] > reserved - count]

    def _read_slots(self, file: int, header: Header, first: int, count: int) -> NDArray[Any]:
        if not count:
            return np.empty(0, RECORD)
        raw = os.pread(file, count * RECORD.itemsize, RECORDS_START + first * RECORD.itemsize)
        records = np.frombuffer(raw, RECORD, count=len(raw) // RECORD.itemsize)
        return records[is_in_place(records, first, header.capacity) & self._is_valid(records, header)]

    def _is_valid(self, records: NDArray[Any], header: Header) -> NDArray[np.bool_]:
        """Whether each record is whole, and has figures that a call or a step mark can have."""
        operation, communicator = records["operation"], records["communicator"]
        named = np.array([*map(bool, header.operations), False])
        known = np.where(operation == STEP, communicator == NO_COMMUNICATOR, communicator < len(self.communicators))
        valid: NDArray[np.bool_] = (
            has_correct_check(records)
            & known
            & named[np.minimum(operation, len(named) - 1)]
            & (records["bytes"] <= INT64_MAX)
            & has_valid_times(records)
        )
        return valid

    def _read_communicators(self, file: int) -> None:
        """Read the entries that the process has added; it adds them in order."""
        while len(self.communicators) < COMMUNICATORS:
            known = len(self.communicators)
            count = min(FIRST_READ, COMMUNICATORS - known)
            raw = os.pread(file, count * COMMUNICATOR.itemsize, HEADER.itemsize + known * COMMUNICATOR.itemsize)
            entries = np.frombuffer(raw, COMMUNICATOR, count=len(raw) // COMMUNICATOR.itemsize)
            is_used = has_correct_check(entries) & (entries["size"] > 0)
            new = int(np.argmin(np.append(is_used, False)))
            self.communicators = np.concatenate([self.communicators, entries[:new]])
            if new < count:
                break


def _by_kind(entries: NDArray[Any]) -> NDArray[Any]:
    """Sums over the threads."""
    return sum_counters(entries, entries["key"] & KIND)


def sum_counters(entries: NDArray[Any], kinds: NDArray[np.uint64]) -> NDArray[Any]:
    """Sums of `entries` (n, of dtype COUNTER) with the same `kinds` (n,), ascending by kind."""
    order = np.argsort(kinds, kind="stable")
    found, firsts = np.unique(kinds[order], return_index=True)
    result = np.zeros(len(found), COUNTER)
    if len(found):
        words = entries.view("<u8").reshape(len(entries), -1)[order]
        result.view("<u8").reshape(len(found), -1)[:] = np.add.reduceat(words, firsts, axis=0)
    result["key"] = found
    return result


def subtract_counters(after: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    """The calls in `after` that are not in `before`; both from `sum_counters`.

    A figure that is smaller in `after`, because a counter was damaged in between, becomes 0.
    """
    result = after.copy()
    _, now, then = np.intersect1d(after["key"], before["key"], assume_unique=True, return_indices=True)
    for name in ("calls", "bytes", "duration_ns", "latencies"):
        new, old = after[name][now], before[name][then]
        result[name][now] = np.where(new > old, new - old, 0)
    return result
