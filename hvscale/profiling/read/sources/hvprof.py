"""Reads hvprof's files, one per process that made a collective call."""

from collections import defaultdict
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.counters import Totals, size_limits
from hvscale.profiling.read.events import SOURCES, Events, Recording, Source
from hvscale.profiling.read.missing_profiles import why_missing
from hvscale.profiling.read.profile_file import BITWISE, BUFFER_BITS, OWN_IDENTITY, POINT_TO_POINT, STEP, ProfileFile
from hvscale.profiling.read.ring_file import CHECK_FACTOR

IDENTITY_MODULUS = 1 << 64


def read(run: RunFolder, detail: bool = False) -> Recording | None:
    """Reads every hvprof profile of the run; None without any.

    `detail`: also reads the communicator, ordinal and buffer of each event. A file that cannot be
    read becomes a warning.

    Raises RequestError if no file can be read, or if the files come from different jobs.
    """
    # The files of one rank sort by the start of their processes.
    paths = sorted(run.hvprof.glob("rank-*.hvp"))
    if not paths:
        return None
    record = run.read()
    np_of_job = record.np
    collector = _EventCollector(detail)
    clock_error_ns: dict[int, int | None] = {}
    errors: list[RequestError] = []
    warnings: list[str] = []
    incomplete: list[str] = []
    overwritten: defaultdict[int, int] = defaultdict(int)  # by rank
    large_counts_unseen: set[int] = set()  # ranks
    stopped: set[int] = set()  # ranks
    jobs: defaultdict[int, dict[int, str]] = defaultdict(dict)  # by job: each of its ranks, with a file name
    for path in paths:
        try:
            profile = ProfileFile(path)
            collector.append(profile)
        except RequestError as error:
            errors.append(error)
            warnings.append(str(error))
            incomplete.append(str(error))
            continue
        clock_error_ns[profile.header.rank] = profile.header.clock_error_ns
        if profile.header.job is not None:
            jobs[profile.header.job][profile.header.rank] = path.name
        warnings += profile.warnings
        incomplete += [profile.truncated] if profile.truncated is not None else []
        if profile.header.large_counts_unseen:
            large_counts_unseen.add(profile.header.rank)
        if profile.header.stopped:
            stopped.add(profile.header.rank)
        if profile.overwritten:
            overwritten[profile.header.rank] += profile.overwritten
    if len(errors) == len(paths):
        raise errors[0]
    _reject_mixed_jobs(run, list(jobs.values()))
    missing = sorted(set(range(np_of_job)) - set(clock_error_ns))
    if missing:
        why = [
            f"no profile of rank {_rank_list(missing)}: it made no MPI call, or its file is lost",
            *why_missing(run, record, missing),
        ]
        warnings += why
        incomplete.append("; ".join(why))
    if large_counts_unseen:
        warnings.append(
            f"calls with large counts (such as MPI_Bcast_c, which mpi4py makes) are not recorded on rank "
            f"{_rank_list(sorted(large_counts_unseen))}: its MPI library has them, that of --mpi {record.library.flavour} "
            f"does not. Name the ranks' own MPI with --mpi"
        )
    if stopped:
        why_stopped = f"rank {_rank_list(sorted(stopped))} ran out of memory: its later calls are not recorded"
        warnings.append(why_stopped)
        incomplete.append(why_stopped)
    if overwritten:
        warnings.append(
            f"the ring overflowed: {sum(overwritten.values())} records of rank {_rank_list(sorted(overwritten))} were "
            f"overwritten. Calls, bytes and seconds still include every call, and percentiles come from histograms; set "
            f"HVPROF_MIB higher to keep all records"
        )
    marks = collector.step_marks()
    return Recording(
        "hvprof",
        collector.events(),
        np_of_job,
        sorted(clock_error_ns),
        overwritten=sum(overwritten.values()),
        warnings=warnings,
        incomplete="; ".join(incomplete) or None,
        steps={rank: times for rank, (times, _) in marks.items()},
        step_threads={rank: threads for rank, (_, threads) in marks.items()},
        clock_error_ns=clock_error_ns,
        totals=collector.totals(collectives=True) if overwritten else None,
        point_to_point=collector.totals(collectives=False),
    )


# hvprof records MPI calls on every rank; Horovod's timeline, on rank 0 only, then just adds phases.
SOURCES.register("hvprof", Source(priority=20, read=read))


def _reject_mixed_jobs(run: RunFolder, jobs: list[dict[int, str]]) -> None:
    """Raises RequestError if two jobs have no common rank.

    A command may start several MPI programs in sequence, each on all ranks. Jobs without a common
    rank come from different runs.
    """
    for first, second in combinations(jobs, 2):
        if not set(first) & set(second):
            raise RequestError(
                f"{run.hvprof} mixes files of different runs: {next(iter(first.values()))} and {next(iter(second.values()))} "
                f"were not recorded together. Move the files of each run into its own folder"
            )


class _EventCollector:
    """Collects events, step marks and counters from all files."""

    def __init__(self, detail: bool) -> None:
        self.detail = detail
        self.columns: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
        self.operations: list[str] = []
        self.identities: dict[int, int] = {}  # identity -> index in Events.communicators
        self.steps: defaultdict[int, list[NDArray[np.int64]]] = defaultdict(list)  # by rank; rows: times, threads
        self.processes: defaultdict[int, int] = defaultdict(int)  # by rank
        # For each file: rank, index in `operations` by operation code, counters.
        self.counters: list[tuple[int, NDArray[np.uint8], NDArray[Any]]] = []

    def append(self, profile: ProfileFile) -> None:
        header = profile.header
        names = header.operations[:STEP]
        self.operations += [name for name in names if name and name not in self.operations]
        operation_index = np.array([self.operations.index(name) if name else 0 for name in names], np.uint8)
        sizes = profile.communicators["size"].astype(np.int32)
        communicator_index = self._communicator_index(profile)
        for chunk in profile.chunks():
            is_step = chunk["operation"] == STEP
            if is_step.any():
                times = chunk["start_ns"][is_step].astype(np.int64) + header.clock_offset_ns
                threads = (chunk["buffer_and_thread"][is_step] >> np.uint64(BUFFER_BITS)).astype(np.int64)
                self.steps[header.rank].append(np.stack([times, threads]))
            records = chunk[~is_step]
            columns = {
                "rank": np.full(len(records), header.rank, np.int32),
                "operation": operation_index[records["operation"]],
                "bytes": records["bytes"].astype(np.int64),
                "start_ns": records["start_ns"].astype(np.int64) + header.clock_offset_ns,
                "duration_ns": records["duration_ns"].astype(np.int64),
                "communicator_size": sizes[records["communicator"]],
                "bitwise": records["flags"] & BITWISE != 0,
                "thread": (records["buffer_and_thread"] >> np.uint64(BUFFER_BITS)).astype(np.uint16),
            }
            if self.detail:
                columns["communicator"] = communicator_index[records["communicator"]]
                columns["ordinal"] = records["ordinal"].astype(np.uint32)
                columns["buffer"] = records["buffer_and_thread"] & np.uint64((1 << BUFFER_BITS) - 1)
            for name, values in columns.items():
                self.columns[name].append(values)
        self.counters.append((header.rank, operation_index, profile.counters))

    def _communicator_index(self, profile: ProfileFile) -> NDArray[np.int32]:
        """The index in Events.communicators of each entry of the file's table."""
        rank = profile.header.rank
        # A later program of the same command has another MPI_COMM_WORLD with the same identity.
        job = profile.header.job or self.processes[rank] * CHECK_FACTOR
        self.processes[rank] += 1
        indices = np.zeros(len(profile.communicators), np.int32)
        for index in np.flatnonzero(profile.communicators["size"]).tolist():
            entry = profile.communicators[index]
            identity = (int(entry["identity"]) + job) % IDENTITY_MODULUS
            if int(entry["flags"]) & OWN_IDENTITY:
                identity = (identity + (rank + 1) * CHECK_FACTOR) % IDENTITY_MODULUS
            indices[index] = self.identities.setdefault(identity, len(self.identities))
        return indices

    def step_marks(self) -> dict[int, NDArray[np.int64]]:
        """By rank: the times of its step marks, ascending, and their threads."""
        marks = {rank: np.concatenate(pieces, axis=1) for rank, pieces in self.steps.items()}
        return {rank: found[:, np.argsort(found[0], kind="stable")] for rank, found in marks.items()}

    def events(self) -> Events:
        return Events(
            operations=tuple(self.operations),
            communicators=tuple(self.identities),
            rank=self._column("rank", np.int32),
            operation=self._column("operation", np.uint8),
            bytes=self._column("bytes", np.int64),
            start_ns=self._column("start_ns", np.int64),
            duration_ns=self._column("duration_ns", np.int64),
            communicator_size=self._column("communicator_size", np.int32),
            bitwise=self._column("bitwise", np.bool_),
            thread=self._column("thread", np.uint16),
            communicator=self._column("communicator", np.int32),
            ordinal=self._column("ordinal", np.uint32),
            buffer=self._column("buffer", np.uint64),
        )

    def totals(self, collectives: bool) -> Totals | None:
        """The counters of all collectives, or of all point-to-point calls; None if none."""
        chosen: list[NDArray[Any]] = []
        ranks: list[NDArray[np.int32]] = []
        operations: list[NDArray[np.uint8]] = []
        for rank, operation_index, counters in self.counters:
            operation = (counters["key"] & np.uint64(63)).astype(np.int64)
            wanted = (np.isin(operation, POINT_TO_POINT) != collectives) & (operation < len(operation_index))
            chosen.append(counters[wanted])
            ranks.append(np.full(len(chosen[-1]), rank, np.int32))
            operations.append(operation_index[operation[wanted]])
        entries = np.concatenate(chosen)
        if not len(entries):
            return None
        smallest, largest = size_limits(entries)
        return Totals(
            operations=tuple(self.operations),
            rank=np.concatenate(ranks),
            operation=np.concatenate(operations),
            bytes_min=smallest,
            bytes_max=largest,
            bitwise=entries["key"] >> np.uint64(13) & np.uint64(1) != 0,
            communicator_size=(entries["key"] >> np.uint64(32)).astype(np.int64).astype(np.int32),
            calls=entries["calls"].astype(np.int64),
            bytes=entries["bytes"].astype(np.int64),
            duration_ns=entries["duration_ns"].astype(np.int64),
            latencies=entries["latencies"].astype(np.int64),
        )

    def _column(self, name: str, dtype: type) -> NDArray[Any]:
        # Frees the pieces column by column: two copies of ten million events would exceed 1 GiB.
        return np.concatenate([np.empty(0, dtype), *self.columns.pop(name, [])])


def _rank_list(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
