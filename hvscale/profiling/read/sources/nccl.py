"""Reads the files of hvprof's NCCL plug-in, one per process that made an NCCL communicator."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.events import SOURCES, Events, Recording, Source
from hvscale.profiling.read.nccl_file import ENQUEUED, SEEN_BY_HOST, NcclProfile, read_nccl_profile

OPERATIONS = {
    b"AllReduce": "allreduce",
    b"AllGather": "allgather",
    b"ReduceScatter": "reduce-scatter",
    b"Broadcast": "broadcast",
    b"Reduce": "reduce",
    b"AlltoAll": "alltoall",
    b"Gather": "gather",
    b"Scatter": "scatter",
    b"Send": "send",
    b"Recv": "receive",
    b"SendRecv": "send-receive",
}
NAMES = (*OPERATIONS.values(), "other")
# NCCL reports the element count of one rank's part. hvscale counts the bytes of the whole buffer,
# as nccl-tests does.
COUNTED_PER_RANK = (b"AllGather", b"ReduceScatter", b"AlltoAll", b"Gather", b"Scatter")
DATATYPE_BYTES = {
    **dict.fromkeys((b"ncclInt8", b"ncclUint8", b"ncclFloat8e4m3", b"ncclFloat8e5m2"), 1),
    **dict.fromkeys((b"ncclFloat16", b"ncclBfloat16"), 2),
    **dict.fromkeys((b"ncclInt32", b"ncclUint32", b"ncclFloat32"), 4),
    **dict.fromkeys((b"ncclInt64", b"ncclUint64", b"ncclFloat64"), 8),
}


@dataclass(frozen=True)
class NcclCalls:
    """The NCCL calls of a run: the recording and, in arrays of the same length, how NCCL made each
    call.
    """

    recording: Recording
    datatype: NDArray[np.bytes_]  # NCCL's own names; empty if NCCL reported none
    algorithm: NDArray[np.bytes_]
    protocol: NDArray[np.bytes_]
    channels: NDArray[np.uint16]
    timing: NDArray[np.uint16]  # nccl_file.ON_DEVICE, SEEN_BY_HOST or ENQUEUED


def read(run: RunFolder, detail: bool = False) -> Recording | None:
    """Reads every NCCL profile of the run; None if NCCL made no call. `detail` has no effect.

    Raises RequestError if there are profiles and none can be read.
    """
    calls = read_calls(run)
    if calls is None or not len(calls.recording.events):
        return None
    if any(run.hvprof.glob("rank-*.hvp")):
        calls.recording.warnings.append(
            "both MPI and NCCL calls were recorded; the table shows NCCL's, which carried the data"
        )
    return calls.recording


# Under Horovod with NCCL, MPI calls only negotiate which tensors to send next.
SOURCES.register("nccl", Source(priority=30, read=read))


def read_calls(run: RunFolder) -> NcclCalls | None:
    """Reads the calls with their algorithms; None if the run has no NCCL profile.

    Raises as `read` does.
    """
    paths = sorted(run.hvprof.glob("nccl-*.hvn"))
    if not paths:
        return None
    profiles: list[NcclProfile] = []
    warnings: list[str] = []
    for path in paths:
        try:
            profile = read_nccl_profile(path)
        except RequestError as error:
            warnings.append(str(error))
            continue
        profiles.append(profile)
        warnings += profile.warnings
        if profile.overwritten:
            warnings.append(
                f"{path}: the ring of {profile.capacity} records overflowed, and the oldest {profile.overwritten} "
                f"were overwritten: set HVPROF_MIB higher"
            )
    if not profiles:
        raise RequestError(warnings[0])
    np_of_job = run.read().np
    ranks = sorted({profile.rank for profile in profiles})
    missing = sorted(set(range(np_of_job)) - set(ranks))
    if missing:
        warnings.append(
            f"no NCCL profile of rank {', '.join(map(str, missing))}: it made no communicator, or its file is lost"
        )
    records = np.concatenate([profile.records for profile in profiles])
    warnings += _timing_warnings(records)
    recording = Recording(
        "nccl",
        _events(profiles, records),
        np_of_job,
        ranks,
        overwritten=sum(profile.overwritten for profile in profiles),
        warnings=warnings,
    )
    return NcclCalls(
        recording, *(records[name] for name in ("datatype", "algorithm", "protocol", "channels", "timing"))
    )


def _timing_warnings(records: NDArray[Any]) -> list[str]:
    warnings = []
    if unsized := int(np.count_nonzero(~np.isin(records["datatype"], list(DATATYPE_BYTES)))):
        warnings.append(f"{unsized} NCCL calls have a data type of unknown size and count 0 bytes")
    if enqueued := int(np.count_nonzero(records["timing"] == ENQUEUED)):
        warnings.append(
            f"{enqueued} of {len(records)} NCCL calls have no GPU time: their time is how long enqueueing them took"
        )
    if seen := int(np.count_nonzero(records["timing"] == SEEN_BY_HOST)):
        warnings.append(
            f"{seen} of {len(records)} NCCL calls are timed by the host, which sees a kernel start and end late"
        )
    return warnings


def _events(profiles: list[NcclProfile], records: NDArray[Any]) -> Events:
    functions = records["function"]
    operation = np.full(len(records), len(OPERATIONS), np.uint8)
    for code, function in enumerate(OPERATIONS):
        operation[functions == function] = code
    lengths = [len(profile.records) for profile in profiles]
    size = _communicator_sizes(records)
    unit = np.zeros(len(records), np.int64)
    for datatype, width in DATATYPE_BYTES.items():
        unit[records["datatype"] == datatype] = width
    parts = np.where(np.isin(functions, COUNTED_PER_RANK), size, 1)
    offsets = np.repeat(np.array([profile.realtime_minus_monotonic_ns for profile in profiles], np.int64), lengths)
    return Events(
        operations=NAMES,
        rank=np.repeat(np.array([profile.rank for profile in profiles], np.int32), lengths),
        operation=operation,
        bytes=records["count"].astype(np.int64) * unit * parts,
        start_ns=records["start_ns"].astype(np.int64) + offsets,
        duration_ns=records["duration_ns"].astype(np.int64),
        communicator_size=size,
        bitwise=np.zeros(len(records), np.bool_),
        thread=np.zeros(len(records), np.int64),
    )


def _communicator_sizes(records: NDArray[Any]) -> NDArray[np.int32]:
    """The number of ranks in the communicator of each record.

    NCCL before 2.27 does not report it: then it is the number of ranks seen with the same id.
    """
    sizes = records["communicator_size"].astype(np.int32)
    unknown = np.flatnonzero(sizes == 0)
    members = np.unique(
        np.stack([records["communicator"][unknown], records["communicator_rank"][unknown].astype(np.uint64)]), axis=1
    )
    ids, seen = np.unique(members[0], return_counts=True)
    sizes[unknown] = seen[np.searchsorted(ids, records["communicator"][unknown])]
    return sizes
