"""The file that hvprof's NCCL plug-in writes (docs/reference/nccl-profile.md): its layout, and a
reader for whole and damaged files.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.profiling.read.ring_file import LARGEST, check_words, header_layout, read_fields, text

HEADER_FIELDS = [  # name, type, offset
    ("magic", "V8", 0),
    ("version", "<u4", 8),
    ("header_bytes", "<u4", 12),
    ("record_bytes", "<u4", 16),
    ("rank", "<u4", 20),
    ("capacity", "<u8", 24),
    ("job_size", "<u4", 32),
    ("pid", "<u4", 36),
    ("monotonic_ns", "<u8", 40),
    ("realtime_ns", "<u8", 48),
    ("check", "<u8", 56),
    ("host", "S64", 64),
    ("interface", "<u4", 128),
    ("recorded", "<u8", 4032),
]
HEADER = header_layout(HEADER_FIELDS)
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
ON_DEVICE, SEEN_BY_HOST, ENQUEUED = range(3)  # a record's timing


@dataclass(frozen=True)
class NcclProfile:
    """One process's NCCL calls."""

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
    """Reads a file. Raises RequestError, naming `path`, if it cannot be read, its header is
    damaged, or no record is intact.
    """
    try:
        with open_regular(path) as stream:
            return _read(path, stream)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path, stream: IO[bytes]) -> NcclProfile:
    sizes = {"header_bytes": HEADER.itemsize, "record_bytes": RECORD.itemsize}
    header = read_fields(path, stream, HEADER, MAGIC, VERSION, sizes, maker="hvprof's NCCL plug-in")
    capacity, recorded = int(header["capacity"]), int(header["recorded"])
    # Never more than the file has: a damaged header may claim any size, for which memory would be
    # allocated.
    there = (os.fstat(stream.fileno()).st_size - HEADER.itemsize) // RECORD.itemsize
    used = stream.read(min(capacity, recorded, there) * RECORD.itemsize)
    slots = np.frombuffer(used, RECORD, count=len(used) // RECORD.itemsize)
    whole = _whole(slots, capacity)
    if recorded > 1 and not whole.any():
        raise RequestError(f"{path} is damaged: none of its {recorded} records is intact")
    warnings = []
    # The plug-in writes one record at a time: a killed process leaves at most one unfinished.
    if min(capacity, recorded) - int(np.count_nonzero(whole)) > 1:
        warnings.append(
            f"{path} is damaged or truncated: {np.count_nonzero(whole)} of {min(capacity, recorded)} records are counted"
        )
    return NcclProfile(
        rank=int(header["rank"]),
        job_size=int(header["job_size"]),
        pid=int(header["pid"]),
        host=text(header["host"]),
        interface=int(header["interface"]),
        capacity=capacity,
        recorded=recorded,
        realtime_minus_monotonic_ns=int(header["realtime_ns"]) - int(header["monotonic_ns"]),
        records=np.sort(slots[whole], order="sequence"),
        warnings=warnings,
    )


def _whole(records: NDArray[Any], capacity: int) -> NDArray[np.bool_]:
    if not len(records):
        return np.empty(0, np.bool_)
    words = records.view("<u8").reshape(len(records), -1)
    whole: NDArray[np.bool_] = (
        (records["sequence"] > 0)
        & ((records["sequence"] - np.uint64(1)) % np.uint64(capacity) == np.arange(len(records), dtype=np.uint64))
        & (records["check"] == check_words(words[:, :-1]))
        & (records["start_ns"] <= LARGEST)
        & (records["duration_ns"] <= LARGEST)
        & (records["communicator_size"] <= np.iinfo(np.int32).max)
    )
    return whole
