"""Reads the files of hvprof's NCCL plug-in, one per process that made an NCCL communicator."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, ranks_in_words
from hvscale.core.units import human_bytes
from hvscale.profiling.read.counters import Totals
from hvscale.profiling.read.events import BLOCK, SOURCES, Events, EventSource, Part, ProfileSource, Recording, Reducer
from hvscale.profiling.read.nccl_file import ENQUEUED, SEEN_BY_HOST, read_nccl_profile
from hvscale.profiling.read.passes import in_order, reduce_messages, workers
from hvscale.profiling.read.sources import hvprof

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
MPI_SHARE = 0.01  # of NCCL's bytes: Horovod's ranks also negotiate and set themselves up by MPI
DATATYPE_BYTES = {
    **dict.fromkeys((b"ncclInt8", b"ncclUint8", b"ncclFloat8e4m3", b"ncclFloat8e5m2"), 1),
    **dict.fromkeys((b"ncclFloat16", b"ncclBfloat16"), 2),
    **dict.fromkeys((b"ncclInt32", b"ncclUint32", b"ncclFloat32"), 4),
    **dict.fromkeys((b"ncclInt64", b"ncclUint64", b"ncclFloat64"), 8),
}


def read(
    run: RunFolder, reducers: Sequence[Reducer[Any]] = (), ranks: Collection[int] | None = None
) -> Recording | None:
    """Reads every NCCL profile of the run, whatever `ranks` says; None if NCCL made no call.

    The size of a communicator may follow only from all of them.

    Raises RequestError if there are profiles and none can be read.
    """
    del ranks
    paths = sorted(run.hvprof.glob("nccl-*.hvn"))
    if not paths:
        return None
    parts: list[NcclPart] = []
    lost: list[str] = []  # why messages are missing that were not overwritten
    for _, found in in_order(NcclPart, paths):
        if isinstance(found, RequestError):
            lost.append(str(found))
        else:
            parts.append(found)
            lost += found.lost
    if not parts:
        raise RequestError(lost[0])
    events = NcclEvents(parts)
    if not len(events):
        return None
    np_of_job = run.read().np
    ranks = sorted({part.rank for part in parts})
    if missing := sorted(set(range(np_of_job)) - set(ranks)):
        lost.append(f"no NCCL profile of {ranks_in_words(missing)}: it made no communicator, or its file is lost")
    warnings = [*lost, *_overflow_warnings(parts), *_beside_nccl(run, events), *_timing_warnings(parts)]
    reduce_messages(events, *reducers)
    return Recording(
        "nccl",
        events,
        np_of_job,
        ranks,
        overwritten=sum(part.overwritten for part in parts),
        warnings=warnings,
        incomplete="; ".join(lost) or None,
        library="NCCL",
    )


# Under Horovod with NCCL, MPI calls only negotiate which tensors to send next.
SOURCES.register("nccl", ProfileSource(priority=30, read=read))


def _beside_nccl(run: RunFolder, events: "NcclEvents") -> list[str]:
    """A warning if MPI carried data too, by the calls of the lowest rank."""
    lowest = events.parts[0].rank
    try:
        mpi = hvprof.read(run, (), [lowest])
    except RequestError as error:
        return [str(error)]
    if mpi is None:
        return []
    # With `totals`, single calls are missing.
    calls: Events | Totals = mpi.events.of_rank(lowest) if mpi.totals is None else mpi.totals.of_ranks([lowest])
    by_mpi, by_nccl = int(calls.bytes[~calls.bitwise].sum()), int(events.of_rank(lowest).bytes.sum())
    if by_mpi <= MPI_SHARE * by_nccl:
        return []
    amounts = f"{human_bytes(by_mpi)} beside NCCL's {human_bytes(by_nccl)}"
    return [
        f"MPI carried {amounts} on rank {lowest}, and the table shows NCCL's calls only: profile with "
        "--env NCCL_PROFILER_PLUGIN=none to see MPI's"
    ]


class NcclPart(Part):
    """The calls in one NCCL profile. Holds none of them, only what all files must be read for.

    `members`: pairs of communicator and rank in it, (2, n), where NCCL did not report its size.
    `lost`: why records are missing that were not overwritten.
    """

    def __init__(self, path: Path) -> None:
        """Raises RequestError if the file cannot be read or is damaged."""
        profile = read_nccl_profile(path)
        records = profile.records
        self.path, self.rank, self.slots = path, profile.rank, len(records)
        self.communicators, self.sizes = np.empty((2, 0), np.int64)
        self.ordinals = np.empty((0, 2), np.int64)
        self.offset_ns = profile.realtime_minus_monotonic_ns
        self.overwritten, self.capacity = profile.overwritten, profile.capacity
        self.unsized = int(np.count_nonzero(~np.isin(records["datatype"], list(DATATYPE_BYTES))))
        self.enqueued, self.seen_by_host = (
            int(np.count_nonzero(records["timing"] == timing)) for timing in (ENQUEUED, SEEN_BY_HOST)
        )
        unknown = records[records["communicator_size"] == 0]
        self.members = np.unique(
            np.stack([unknown["communicator"], unknown["communicator_rank"].astype(np.uint64)]), axis=1
        )
        self._times = _times_of_blocks(records, self.offset_ns)
        self.lost = profile.warnings

    def in_source(self, source: "NcclEvents") -> None:
        self._source = source

    def read(self, first: int, count: int, detail: bool) -> Events:
        del detail
        return self._source.events(self, first, count)

    def times(self) -> NDArray[np.int64]:
        return self._times


class NcclEvents(EventSource):
    """The calls in the NCCL profiles of a run; holds those of a few files at a time."""

    operations = NAMES
    communicators = ()
    detailed = False

    def __init__(self, parts: Sequence[NcclPart]) -> None:
        self._parts = sorted(parts, key=lambda part: part.rank)
        for part in parts:
            part.in_source(self)
        members = np.unique(np.concatenate([part.members for part in parts], axis=1), axis=1)
        self._communicators, self._seen = np.unique(members[0], return_counts=True)
        self._records = lru_cache(workers())(lambda path: read_nccl_profile(path).records)

    @property
    def parts(self) -> list[NcclPart]:
        return self._parts

    def __len__(self) -> int:
        return sum(part.slots for part in self.parts)

    def events(self, part: NcclPart, first: int, count: int) -> Events:
        """The calls from number `first` on.

        Raises RequestError if the file can no longer be read.
        """
        records = self._records(part.path)[first : first + count]
        functions = records["function"]
        operation = np.full(len(records), len(OPERATIONS), np.uint8)
        for code, function in enumerate(OPERATIONS):
            operation[functions == function] = code
        unit = np.zeros(len(records), np.int64)
        for datatype, width in DATATYPE_BYTES.items():
            unit[records["datatype"] == datatype] = width
        size = self._sizes(records)
        blocks = np.where(np.isin(functions, COUNTED_PER_RANK), size, 1)
        return Events(
            operations=NAMES,
            rank=np.full(len(records), part.rank, np.int32),
            operation=operation,
            bytes=records["count"].astype(np.int64) * unit * blocks,
            start_ns=records["start_ns"].astype(np.int64) + part.offset_ns,
            duration_ns=records["duration_ns"].astype(np.int64),
            communicator_size=size,
            bitwise=np.zeros(len(records), np.bool_),
            thread=np.zeros(len(records), np.int64),
        )

    def _sizes(self, records: NDArray[Any]) -> NDArray[np.int32]:
        """The number of ranks in the communicator of each record.

        NCCL before 2.27 does not report it: then it is the number of ranks seen with the same id.
        """
        sizes = records["communicator_size"].astype(np.int32)
        unknown = np.flatnonzero(sizes == 0)
        sizes[unknown] = self._seen[np.searchsorted(self._communicators, records["communicator"][unknown])]
        return sizes


def _times_of_blocks(records: NDArray[Any], offset_ns: int) -> NDArray[np.int64]:
    """As `Part.times`."""
    if not len(records):
        return np.empty((0, 4), np.int64)
    start = records["start_ns"].astype(np.int64) + offset_ns
    begins = np.arange(0, len(start), BLOCK)
    extremes = [
        np.minimum.reduceat(start, begins),
        np.maximum.reduceat(start, begins),
        np.maximum.reduceat(start + records["duration_ns"].astype(np.int64), begins),
    ]
    return np.stack([np.diff(np.append(begins, len(start))), *extremes], axis=1)


def _overflow_warnings(parts: Sequence[NcclPart]) -> list[str]:
    return [
        f"{part.path}: the ring of {part.capacity} records overflowed, and the oldest {part.overwritten} "
        f"were overwritten, so the table lacks them: set HVPROF_MIB higher"
        for part in parts
        if part.overwritten
    ]


def _timing_warnings(parts: Sequence[NcclPart]) -> list[str]:
    warnings = []
    calls = sum(part.slots for part in parts)
    if unsized := sum(part.unsized for part in parts):
        warnings.append(f"{unsized} NCCL calls have a data type of unknown size and count 0 bytes")
    if enqueued := sum(part.enqueued for part in parts):
        warnings.append(
            f"{enqueued} of {calls} NCCL calls have no GPU time: their time is how long enqueueing them took"
        )
    if seen := sum(part.seen_by_host for part in parts):
        warnings.append(f"{seen} of {calls} NCCL calls are timed by the host, which sees a kernel start and end late")
    return warnings
