"""Layout and reader of the profile file that hvprof writes (docs/reference/profile-format.md).

The reader also reads truncated and damaged files.
"""

import fcntl
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.profiling.read.counters import COUNTER, COUNTERS, intact_counters, operation_codes, read_torn_again
from hvscale.profiling.read.ring_file import (
    CHECK_FACTOR,
    INT64_MAX,
    MAX_CALL_NS,
    MAX_CLOCK_NS,
    check_words,
    field_text,
    has_correct_check,
    has_valid_times,
    header_layout,
    is_in_place,
    read_header_fields,
)

OPERATION_NAME = "S24"
HEADER = header_layout(
    [
        ("flavour", "S32", 128),
        ("library", "S256", 160),
        ("operations", (OPERATION_NAME, 64), 416),
        ("clock_offset_ns", "<i8", 1952),
        ("clock_error_ns", "<u8", 1960),
        ("job", "<u8", 1968),
        ("flags", "<u4", 1976),
        ("reserved_records", "<u8", 4032),
        ("stopped_ns", "<u8", 4040),
        ("step_sums", ("<u8", 6), 4048),
    ]
)
RECORD = np.dtype(
    [
        ("sequence", "<u8"),
        ("start_ns", "<u8"),
        ("duration_ns", "<u8"),
        ("bytes", "<u8"),
        ("buffer_and_thread", "<u8"),  # 48 bits and 16
        ("communicator", "<u4"),
        ("ordinal", "<u4"),
        ("root", "<i4"),
        ("operation", "<u2"),
        ("flags", "<u2"),
        ("check", "<u8"),
    ]
)
COMMUNICATOR = np.dtype(
    [("identity", "<u8"), ("size", "<u4"), ("rank", "<u4"), ("flags", "<u4"), ("remote_size", "<u4"), ("check", "<u8")]
)
COMMUNICATORS = 4096
COUNTERS_START = HEADER.itemsize + COMMUNICATORS * COMMUNICATOR.itemsize
RECORDS_START = COUNTERS_START + COUNTERS * COUNTER.itemsize
NO_COMMUNICATOR = 2**32 - 1
POINT_TO_POINT = (23, 24, 25, 55, 56)  # operations that are counted, not recorded
STEP = 63  # operation of a step mark: the start of a step, not a call
BUFFER_BITS = 48
UNKNOWN_CLOCK_ERROR = 2**64 - 1
BITWISE = 1  # flag of a record: reduced by MPI_BAND, MPI_BOR or MPI_BXOR
LARGE_COUNTS_UNSEEN = 1  # flag of a file: the MPI library's functions with large counts are not recorded
OWN_IDENTITY = 1  # flag of a communicator: other members may know it by another identity
MAGIC = b"hvprof\r\n"
VERSION = 4
CHUNK_RECORDS = 1 << 14  # 1 MiB, which stays in the processor's cache between the passes over it


@dataclass(frozen=True)
class StepSums:
    """Sums over the steps of a process, each from one step mark to the next."""

    steps: int
    duration_ns: int
    blocking_ns: int  # of blocking collectives, by the thread that marked the step's start
    collectives_ns: int  # of all collectives that ended in the steps, by all threads
    collectives_bytes: int  # without bitwise reductions

    def __add__(self, other: "StepSums") -> "StepSums":
        return StepSums(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Header:
    """The process that wrote a profile file."""

    rank: int
    world_size: int
    pid: int
    started_ns: int  # since 1970, by the host's clock, when the process opened the file
    host: str
    flavour: str
    library: str
    capacity: int  # records; 0: calls were only counted
    reserved_records: int  # sequence numbers that threads have reserved
    clock_offset_ns: int  # added to a record's time, gives nanoseconds since 1970 by rank 0's clock
    clock_error_ns: int | None  # of the offset; None: not measured, and the offset is that of the rank's own host
    job: int | None  # the same in all ranks of a job; None: unknown
    large_counts_unseen: bool  # the MPI library's functions with large counts are not recorded
    stopped: bool  # the process ran out of memory, so later calls are not recorded
    operations: tuple[str, ...]
    steps: StepSums | None  # None: the process marked no two steps


def read_header(path: Path, stream: IO[bytes]) -> Header:
    """Reads and checks the header.

    Raises RequestError, naming `path`, if the file is not an hvprof profile of this version.
    """
    sizes = {"header_bytes": RECORDS_START, "record_bytes": RECORD.itemsize}
    fields = read_header_fields(
        path, stream, HEADER, magic=MAGIC, version=VERSION, sizes=sizes, writer="hvprof", may_have_no_records=True
    )
    if not fields["capacity"] and fields["reserved_records"]:
        raise RequestError(f"{path} is damaged: its header has sizes that version {VERSION} does not allow")
    clock_error_ns = None if fields["clock_error_ns"] == UNKNOWN_CLOCK_ERROR else int(fields["clock_error_ns"])
    if abs(int(fields["clock_offset_ns"])) > MAX_CLOCK_NS or (clock_error_ns or 0) > MAX_CALL_NS:
        raise RequestError(f"{path} is damaged: its header has a time that no clock can have")
    return Header(
        rank=int(fields["rank"]),
        world_size=int(fields["world_size"]),
        pid=int(fields["pid"]),
        started_ns=int(fields["realtime_ns"]),
        host=field_text(fields["host"]),
        flavour=field_text(fields["flavour"]),
        library=field_text(fields["library"]).partition("\n")[0],
        capacity=int(fields["capacity"]),
        reserved_records=int(fields["reserved_records"]),
        clock_offset_ns=int(fields["clock_offset_ns"]),
        clock_error_ns=clock_error_ns,
        job=int(fields["job"]) or None,
        large_counts_unseen=bool(fields["flags"] & LARGE_COUNTS_UNSEEN),
        stopped=fields["stopped_ns"] != 0,
        operations=_operation_names(fields["operations"].tobytes()),
        steps=_step_sums(fields["step_sums"]),
    )


@lru_cache(maxsize=16)
def _operation_names(table: bytes) -> tuple[str, ...]:
    """The names in a header's table. Cached: the ranks of a job have the same table."""
    return tuple(field_text(name) for name in np.frombuffer(table, OPERATION_NAME))


def _step_sums(words: NDArray[np.uint64]) -> StepSums | None:
    """The sums in a header; None without steps, and if a killed process was changing them."""
    if not words[0] or check_words(words[None, :-1])[0] != words[-1] or (words[:-1] > INT64_MAX).any():
        return None
    return StepSums(*words[:-1].tolist())


def ranks_of_job(headers: Sequence[Header]) -> int:
    """The number of ranks that most files have; a rank may have started MPI programs on others."""
    sizes = Counter(header.world_size for header in headers)
    return max(sizes, key=lambda size: (sizes[size], size), default=0)


def job_numbers(headers: Sequence[Header]) -> list[int]:
    """For each process, a number that is the same on all ranks of its job.

    A rank whose clock was not aligned does not know its job: it is the only known job of as many
    ranks, if there is one. Otherwise the number is that of the process among those of its rank.
    `headers`: those of a rank in the order of their start.
    """
    jobs: defaultdict[int, set[int]] = defaultdict(set)  # by number of ranks
    for header in headers:
        if header.job is not None:
            jobs[header.world_size].add(header.job)
    processes, before = Counter(header.rank for header in headers), Counter[int]()
    numbers = []
    for header in headers:
        known = jobs[header.world_size]
        if header.job is not None:
            number = header.job
        elif len(known) == 1 and processes[header.rank] == 1:
            (number,) = known
        else:
            number = before[header.rank] * CHECK_FACTOR % (1 << 64)
        before[header.rank] += 1
        numbers.append(number)
    return numbers


def communicator_identities(entries: NDArray[Any], rank: int, job: int) -> NDArray[np.uint64]:
    """The identities of a file's communicators (n, of dtype COMMUNICATOR), over all files.

    `job`: from `job_numbers`. Another job, such as a later program of the same command, has another
    MPI_COMM_WORLD with the same identity.
    """
    own = np.where(entries["flags"] & OWN_IDENTITY != 0, rank + 1, 0).astype(np.uint64)
    identities: NDArray[np.uint64] = entries["identity"] + np.uint64(job) + own * np.uint64(CHECK_FACTOR)
    return identities


def used_bytes(path: Path) -> int:
    """The bytes up to the end of the last record.

    Raises RequestError or OSError if the header cannot be read.
    """
    return RECORDS_START + record_bytes(path)


def record_bytes(path: Path) -> int:
    """The bytes of the records in a file. Raises as `used_bytes` does."""
    with open_regular(path) as stream:
        header = read_header(path, stream)
    return min(header.reserved_records, header.capacity) * RECORD.itemsize


class ProfileHeader:
    """The header of a profile, of which nothing else is read."""

    def __init__(self, path: Path) -> None:
        """Raises RequestError if `path` cannot be read or its header is damaged."""
        self.path = path
        try:
            with open_regular(path) as stream:
                self.header = read_header(path, stream)
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}") from error


def read_communicators(stream: IO[bytes]) -> NDArray[Any]:
    """Reads the table of communicators, of dtype COMMUNICATOR.

    An unused, missing or damaged entry has size 0.
    """
    entries = np.zeros(COMMUNICATORS, COMMUNICATOR)
    raw = stream.read(entries.nbytes)
    entries.view(np.uint8)[: len(raw)] = np.frombuffer(raw, np.uint8)
    entries[~(has_correct_check(entries) & (entries["size"] <= np.iinfo(np.int32).max))] = 0
    return entries


def read_counters(path: Path, stream: IO[bytes]) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    """Reads the intact counters in use, of dtype COUNTER, and the keys of the damaged ones.

    Raises RequestError if the file ends before the last counter.
    """
    raw = stream.read(COUNTERS * COUNTER.itemsize)
    if len(raw) < COUNTERS * COUNTER.itemsize:
        raise RequestError(f"{path} is truncated: it ends before its first record")
    entries = np.frombuffer(raw, COUNTER).copy()
    read_torn_again(stream.fileno(), COUNTERS_START, entries)
    return intact_counters(entries)


class ProfileFile:
    """One rank's profile: its header, communicators and counters, and its records.

    Records are read by their age: `slots` places from the oldest on. After `chunks` is exhausted,
    `slots` leaves out what was never used, `overwritten` counts lost records, `warnings` describes
    damage, and `lost` says why messages are missing. `being_written`: its process still runs, so
    the tables, which are read first, may know fewer calls than the records.
    """

    def __init__(self, path: Path) -> None:
        """Raises RequestError if `path` cannot be read or its header is damaged."""
        self.path = path
        self.overwritten = 0
        self.warnings: list[str] = []
        self.lost: str | None = None
        self.being_written = False
        try:
            with open_regular(path) as stream:
                self.header = read_header(path, stream)
                self.communicators = read_communicators(stream)
                self.counters, self._damaged_keys = read_counters(path, stream)
                there = (os.fstat(stream.fileno()).st_size - RECORDS_START) // RECORD.itemsize
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}") from error
        self.slots = max(0, min(self.header.capacity, there))
        reserved, capacity = self.header.reserved_records, self.header.capacity
        oldest = reserved % capacity if reserved > capacity > 0 else 0
        self._oldest = oldest if oldest < self.slots else 0
        self._named = np.array([bool(name) for name in self.header.operations])
        self.damaged_counters = len(self._damaged_keys)

    def read(self, first: int, count: int) -> NDArray[Any]:
        """The intact records, of dtype RECORD, in `count` slots from the `first` oldest one on.

        Raises RequestError if the file can no longer be read.
        """
        return _joined([_chosen(records, self._is_intact(records, slot)) for slot, records in self._read(first, count)])

    def chunks(self) -> Iterator[NDArray[Any]]:
        """Yields the intact records of CHUNK_RECORDS slots at a time; checks that none is missing.

        Raises RequestError if records were written but none is intact.
        """
        header = self.header
        intact, damaged, seen, position = 0, 0, 0, 0
        last_overwritten = max(0, header.reserved_records - header.capacity)
        threads: set[int] = set()
        while position < self.slots:
            found = []
            for slot, records in self._read(position, CHUNK_RECORDS):
                seen += len(records)
                chosen = self._is_intact(records, slot)
                if not isinstance(chosen, slice):
                    # A thread suspended in a record while others fill the ring damages the newer
                    # record in its slot: both count as overwritten.
                    overwritten = is_in_place(records, slot, header.capacity) & (
                        records["sequence"] <= last_overwritten
                    )
                    damaged += int(np.count_nonzero(~chosen & ~overwritten & (records["sequence"] != 0)))
                found.append(_chosen(records, chosen))
            chunk = _joined(found)
            position += CHUNK_RECORDS
            if not len(chunk) and position >= header.reserved_records:
                break
            intact += len(chunk)
            threads.update(_distinct(chunk["buffer_and_thread"] >> np.uint64(BUFFER_BITS)))
            yield chunk
        self.slots = min(self.slots, position)
        self._check_completeness(seen, intact, damaged, len(threads))

    def _read(self, first: int, count: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """The records in `count` slots, by age: the number of the first slot, and its neighbours.

        Reads instead of mapping, so that a file that shrinks meanwhile does not kill the reader.
        """
        count = min(count, self.slots - first)
        slot = (self._oldest + first) % max(self.slots, 1)
        pieces = [(slot, min(count, self.slots - slot)), (0, max(0, count - (self.slots - slot)))]
        try:
            with open_regular(self.path) as stream:
                for at, length in pieces:
                    if length > 0:
                        stream.seek(RECORDS_START + at * RECORD.itemsize)
                        raw = stream.read(length * RECORD.itemsize)
                        yield at, np.frombuffer(raw, RECORD, count=len(raw) // RECORD.itemsize)
        except OSError as error:
            raise RequestError(f"{self.path} cannot be read: {error.strerror}") from error

    def _is_intact(self, records: NDArray[Any], first_slot: int) -> Any:
        """A mask of the intact records, or a slice if all are intact."""
        intact = is_in_place(records, first_slot, self.header.capacity) & self._is_valid(records)
        return slice(None) if intact.all() else intact

    def _is_valid(self, records: NDArray[Any]) -> NDArray[np.bool_]:
        communicator, operation = records["communicator"], records["operation"]
        in_communicator = self.communicators["size"][np.minimum(communicator, COMMUNICATORS - 1)] > 0
        in_communicator &= communicator < COMMUNICATORS
        is_step = operation == STEP
        if is_step.any():
            in_communicator = np.where(is_step, communicator == NO_COMMUNICATOR, in_communicator)
        valid: NDArray[np.bool_] = (
            has_correct_check(records)
            & in_communicator
            & (records["bytes"] <= INT64_MAX)
            & has_valid_times(records)
            & self._named[np.minimum(operation, len(self._named) - 1)]
            & (operation < len(self._named))
        )
        return valid

    def _check_completeness(self, slots: int, intact: int, damaged: int, threads: int) -> None:
        reserved, capacity = self.header.reserved_records, self.header.capacity
        self.being_written = self._is_being_written()
        if not capacity:
            self.check_counters()
            return
        operations = operation_codes(self.counters["key"])
        counted = sum(self.counters["calls"][~np.isin(operations, POINT_TO_POINT)].tolist())
        if not intact and counted > threads:
            raise RequestError(f"{self.path} is damaged: none of its {counted} records is intact")
        if reserved > capacity:
            self.overwritten = max(0, counted - intact)
        if slots < min(reserved, capacity):
            self._add_loss(f"{self.path} is truncated: {intact} records are left of {counted} calls")
            return
        if self.being_written:
            return
        damage = f"{self.path} is damaged: {intact} intact records are used, the others ignored"
        # After an overflow the counters are used, else the records.
        if self.overwritten:
            self.check_counters()
        elif self.damaged_counters if reserved > capacity else damaged or intact < counted:
            self._add_loss(damage)
        elif self._counted_calls_are_lost():
            self.check_counters()
        # A killed process may leave one call of each thread recorded but not yet counted.
        if self.lost is None and (damaged or self.damaged_counters or intact > counted + threads):
            self.warnings.append(damage)

    def _counted_calls_are_lost(self) -> bool:
        """Whether a damaged counter may be of calls that have no record, point-to-point calls."""
        operations = operation_codes(self._damaged_keys)
        readable = (operations < len(self._named)) & self._named[np.minimum(operations, len(self._named) - 1)]
        return bool((np.isin(operations, POINT_TO_POINT) | ~(readable | (operations == STEP))).any())

    def check_counters(self) -> None:
        """Notes that messages are missing, where the counters are used and some are damaged."""
        if self.damaged_counters and self.lost is None:
            self._add_loss(f"{self.path} is damaged: {self.damaged_counters} of its counters are ignored")

    def _add_loss(self, text: str) -> None:
        self.lost = text
        self.warnings.append(text)

    def _is_being_written(self) -> bool:
        """Whether its process locks the file on this host, or has written since it was opened."""
        try:
            with open_regular(self.path) as stream:
                if _is_locked_by_its_process(stream):
                    return True
                return read_header(self.path, stream).reserved_records != self.header.reserved_records
        except (OSError, RequestError):
            return False


def _is_locked_by_its_process(stream: IO[bytes]) -> bool:
    """Whether a recording process shares its lock; False where locks are not supported."""
    try:
        # Another reader that asks the same excludes all others for a moment.
        return not _locks(stream, fcntl.LOCK_EX) and _locks(stream, fcntl.LOCK_SH) and not _locks(stream, fcntl.LOCK_EX)
    except OSError:  # NFS gives no exclusive lock on a file that is open for reading only
        return False


def _locks(stream: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _distinct(values: NDArray[np.uint64]) -> set[int]:
    """The distinct values, which are few and mostly the same."""
    first = values[:1]
    return set((first if (values == first).all() else np.unique(values)).tolist())


def _chosen(records: NDArray[Any], which: Any) -> NDArray[Any]:
    return records if isinstance(which, slice) else records.compress(which)


def _joined(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, RECORD), *pieces])
