"""The profile file that hvprof writes (docs/reference/profile-format.md): its layout, and a reader
for whole and damaged files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.profiling.read.counters import COUNTER, COUNTERS, sound_counters
from hvscale.profiling.read.ring_file import LARGEST, check_words, header_layout, read_fields, text

HEADER_FIELDS = [  # name, type, offset
    ("magic", "V8", 0),
    ("version", "<u4", 8),
    ("header_bytes", "<u4", 12),
    ("record_bytes", "<u4", 16),
    ("rank", "<u4", 20),
    ("capacity", "<u8", 24),
    ("world_size", "<u4", 32),
    ("pid", "<u4", 36),
    ("monotonic_ns", "<u8", 40),
    ("realtime_ns", "<u8", 48),
    ("check", "<u8", 56),
    ("host", "S64", 64),
    ("flavour", "S32", 128),
    ("library", "S256", 160),
    ("operations", ("S24", 64), 416),
    ("clock_offset_ns", "<i8", 1952),
    ("clock_error_ns", "<u8", 1960),
    ("job", "<u8", 1968),
    ("flags", "<u4", 1976),
    ("reserved_records", "<u8", 4032),
    ("stopped_ns", "<u8", 4040),
]
HEADER = header_layout(HEADER_FIELDS)
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
STEP = 63  # operation: not a call, the start of a step
BUFFER_BITS = 48
UNKNOWN_ERROR = 2**64 - 1
BITWISE = 1  # flag of a record: reduced by MPI_BAND, MPI_BOR or MPI_BXOR
LARGE_COUNTS_UNSEEN = 1  # flag of a file: the MPI library has functions with large counts, which are not recorded
OWN_IDENTITY = 1  # flag of a communicator: the other members may know it by another identity
MAGIC = b"hvprof\r\n"
VERSION = 3
CHUNK_RECORDS = 1 << 14  # a MiB: it stays in the processor's cache between the passes over it


@dataclass(frozen=True)
class Header:
    """The process that wrote the file."""

    rank: int
    world_size: int
    pid: int
    host: str
    flavour: str
    library: str
    capacity: int
    reserved_records: int  # sequence numbers given to threads
    clock_offset_ns: int  # record times plus this: nanoseconds since 1970 by rank 0's clock
    clock_error_ns: int | None  # of the offset; None: not measured, and the offset is that of the rank's own host
    job: int | None  # the same in all ranks of a job; None: unknown
    large_counts_unseen: bool  # the MPI library has functions with large counts, whose calls are not recorded
    stopped: bool  # the process ran out of memory: later calls are not recorded
    operations: tuple[str, ...]


def read_header(path: Path, stream: IO[bytes]) -> Header:
    """Reads and checks the header. Raises RequestError, naming `path`, if it is not a profile of
    this version.
    """
    sizes = {"header_bytes": RECORDS_START, "record_bytes": RECORD.itemsize}
    fields = read_fields(path, stream, HEADER, MAGIC, VERSION, sizes, maker="hvprof")
    return Header(
        rank=int(fields["rank"]),
        world_size=int(fields["world_size"]),
        pid=int(fields["pid"]),
        host=text(fields["host"]),
        flavour=text(fields["flavour"]),
        library=text(fields["library"]).partition("\n")[0],
        capacity=int(fields["capacity"]),
        reserved_records=int(fields["reserved_records"]),
        clock_offset_ns=int(fields["clock_offset_ns"]),
        clock_error_ns=None if fields["clock_error_ns"] == UNKNOWN_ERROR else int(fields["clock_error_ns"]),
        job=int(fields["job"]) or None,
        large_counts_unseen=bool(fields["flags"] & LARGE_COUNTS_UNSEEN),
        stopped=fields["stopped_ns"] != 0,
        operations=tuple(text(name) for name in fields["operations"]),
    )


def read_communicators(stream: IO[bytes]) -> NDArray[Any]:
    """The table of communicators, of dtype COMMUNICATOR; an unused, missing or damaged entry has
    size 0.
    """
    entries = np.zeros(COMMUNICATORS, COMMUNICATOR)
    raw = stream.read(entries.nbytes)
    entries.view(np.uint8)[: len(raw)] = np.frombuffer(raw, np.uint8)
    words = entries.view("<u8").reshape(len(entries), -1)
    sound = (entries["check"] == check_words(words[:, :-1])) & (entries["size"] <= np.iinfo(np.int32).max)
    entries[~sound] = 0
    return entries


def read_counters(path: Path, stream: IO[bytes]) -> tuple[NDArray[Any], int]:
    """The counters in use, of dtype COUNTER, and how many more are damaged. Raises RequestError if
    the file ends before the last one.
    """
    raw = stream.read(COUNTERS * COUNTER.itemsize)
    if len(raw) < COUNTERS * COUNTER.itemsize:
        raise RequestError(f"{path} is truncated: it ends before its first record")
    return sound_counters(np.frombuffer(raw, COUNTER))


class ProfileFile:
    """One rank's profile: its counters, and its records in chunks.

    After `chunks` has run to its end, `overwritten` and `warnings` tell what it could not give.
    """

    def __init__(self, path: Path) -> None:
        """Raises RequestError if `path` cannot be read or its header is damaged."""
        self.path = path
        self.overwritten = 0
        self.warnings: list[str] = []
        self.truncated: str | None = None
        try:
            with open_regular(path) as stream:
                self.header = read_header(path, stream)
                self.communicators = read_communicators(stream)
                self.counters, self.damaged_counters = read_counters(path, stream)
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}") from error

    def chunks(self) -> Iterator[NDArray[Any]]:
        """Yields arrays of dtype RECORD with the intact records, in the order of their slots.

        Read, not mapped: a file that shrinks meanwhile must not kill the reader. Raises
        RequestError when records were written but none is whole.
        """
        header = self.header
        whole, damaged, slot = 0, 0, 0
        overtaken = max(0, header.reserved_records - header.capacity)
        threads: set[int] = set()
        with open_regular(self.path) as stream:
            stream.seek(RECORDS_START)
            while slot < header.capacity:
                raw = stream.read(min(CHUNK_RECORDS, header.capacity - slot) * RECORD.itemsize)
                records = np.frombuffer(raw, RECORD, count=len(raw) // RECORD.itemsize)
                if not len(records):
                    break
                slot += len(records)
                in_place = self._is_in_place(records, slot - len(records))
                is_whole = in_place & self._is_sound(records)
                # A thread suspended in a record while others fill the ring damages the newer record
                # in its slot: both count as overwritten.
                held_up = in_place & (records["sequence"] <= overtaken)
                damaged += int(np.count_nonzero(~is_whole & ~held_up & (records["sequence"] != 0)))
                records = records[is_whole]
                if len(records):
                    whole += len(records)
                    threads.update(np.unique(records["buffer_and_thread"] >> np.uint64(BUFFER_BITS)).tolist())
                    yield records
                elif slot >= header.reserved_records:
                    break
        self._judge(slot, whole, damaged, len(threads))

    def _is_in_place(self, records: NDArray[Any], first_slot: int) -> NDArray[np.bool_]:
        slots = np.arange(first_slot, first_slot + len(records), dtype=np.uint64)
        in_place: NDArray[np.bool_] = (records["sequence"] > 0) & (
            (records["sequence"] - np.uint64(1)) % np.uint64(self.header.capacity) == slots
        )
        return in_place

    def _is_sound(self, records: NDArray[Any]) -> NDArray[np.bool_]:
        named = np.array([bool(name) for name in self.header.operations])
        words = records.view("<u8").reshape(len(records), -1)
        sizes = self.communicators["size"][np.minimum(records["communicator"], COMMUNICATORS - 1)]
        in_communicator = (records["communicator"] < COMMUNICATORS) & (sizes > 0)
        sound: NDArray[np.bool_] = (
            (records["check"] == check_words(words[:, :-1]))
            & np.where(records["operation"] == STEP, records["communicator"] == NO_COMMUNICATOR, in_communicator)
            & (records["bytes"] <= LARGEST)
            & (records["start_ns"] <= LARGEST)
            & (records["duration_ns"] <= LARGEST)
            & named[np.minimum(records["operation"], len(named) - 1)]
            & (records["operation"] < len(named))
        )
        return sound

    def _judge(self, slots: int, whole: int, damaged: int, threads: int) -> None:
        reserved, capacity = self.header.reserved_records, self.header.capacity
        operations = (self.counters["key"] & np.uint64(63)).astype(np.int64)
        counted = sum(self.counters["calls"][~np.isin(operations, POINT_TO_POINT)].tolist())
        if not whole and counted > threads:
            raise RequestError(f"{self.path} is damaged: none of its {counted} records is intact")
        if reserved > capacity:
            self.overwritten = max(0, counted - whole)
        if slots < min(reserved, capacity):
            self.truncated = f"{self.path} is truncated: {whole} records are left of {counted} calls"
            self.warnings.append(self.truncated)
        # A killed process may leave one call of each thread recorded but not yet counted.
        elif damaged or self.damaged_counters or whole + self.overwritten < counted or whole > counted + threads:
            self.warnings.append(f"{self.path} is damaged: {whole} intact records are counted, the others ignored")
