"""Layout and reader of the file that hvprof's NCCL plug-in writes (docs/reference/nccl-profile.md).

The reader also reads truncated and damaged files.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.profiling.read.ring_file import (
    field_text,
    has_correct_check,
    has_valid_times,
    header_layout,
    is_in_place,
    read_header_fields,
)

HEADER = header_layout([("interface", "<u4", 128), ("recorded", "<u8", 4032)])
RECORD = np.dtype(
    [
        ("sequence", "<u8"),
        ("start_ns", "<u8"),
        ("duration_ns", "<u8"),
        ("count", "<u8"),
        ("communicator", "<u8"),
        ("communicator_size", "<u4"),
        ("communicator_rank", "<u4"),
        ("root", "<i4"),
        ("channels", "<u2"),
        ("timing", "<u2"),
        ("function", "S16"),
        ("datatype", "S16"),
        ("algorithm", "S16"),
        ("protocol", "S16"),
        ("check", "<u8"),
    ]
)
MAGIC = b"hvnccl\r\n"
VERSION = 1
ON_DEVICE, SEEN_BY_HOST, ENQUEUED = range(3)  # `timing` of a record


@dataclass(frozen=True)
class NcclProfile:
    """The NCCL calls of one process."""

    rank: int  # in the job
    job_size: int
    pid: int
    host: str
    interface: int  # version of NCCL's profiler interface
    capacity: int
    recorded: int
    realtime_minus_monotonic_ns: int
    records: NDArray[Any]  # of dtype RECORD, the intact ones, in order
    warnings: list[str]

    @property
    def overwritten(self) -> int:
        return max(0, self.recorded - self.capacity)


def read_nccl_profile(path: Path) -> NcclProfile:
    """Reads a file.

    Raises RequestError, naming `path`, if it cannot be read, its header is damaged, or no record is
    intact.
    """
    try:
        with open_regular(path) as stream:
            return _read(path, stream)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error


def used_bytes(path: Path) -> int:
    """The bytes up to the end of the last record. Raises as `read_nccl_profile` does."""
    profile = read_nccl_profile(path)
    return HEADER.itemsize + min(profile.recorded, profile.capacity) * RECORD.itemsize


def _read(path: Path, stream: IO[bytes]) -> NcclProfile:
    sizes = {"header_bytes": HEADER.itemsize, "record_bytes": RECORD.itemsize}
    header = read_header_fields(
        path, stream, HEADER, magic=MAGIC, version=VERSION, sizes=sizes, writer="hvprof's NCCL plug-in"
    )
    capacity, recorded = int(header["capacity"]), int(header["recorded"])
    # Never more than the file holds: a damaged header may claim any size, and reading it would
    # allocate that much memory.
    available = (os.fstat(stream.fileno()).st_size - HEADER.itemsize) // RECORD.itemsize
    used = stream.read(min(capacity, recorded, available) * RECORD.itemsize)
    slots = np.frombuffer(used, RECORD, count=len(used) // RECORD.itemsize)
    is_intact = (
        is_in_place(slots, 0, capacity)
        & has_correct_check(slots)
        & has_valid_times(slots)
        & (slots["communicator_size"] <= np.iinfo(np.int32).max)
    )
    intact, expected = int(np.count_nonzero(is_intact)), min(capacity, recorded)
    if recorded > 1 and not intact:
        raise RequestError(f"{path} is damaged: none of its {recorded} records is intact")
    warnings = []
    # The plug-in writes one record at a time: a killed process leaves at most one unfinished.
    if expected - intact > 1:
        warnings.append(f"{path} is damaged or truncated: {intact} of {expected} records are counted")
    return NcclProfile(
        rank=int(header["rank"]),
        job_size=int(header["world_size"]),
        pid=int(header["pid"]),
        host=field_text(header["host"]),
        interface=int(header["interface"]),
        capacity=capacity,
        recorded=recorded,
        realtime_minus_monotonic_ns=int(header["realtime_ns"]) - int(header["monotonic_ns"]),
        records=np.sort(slots[is_intact], order="sequence"),
        warnings=warnings,
    )
