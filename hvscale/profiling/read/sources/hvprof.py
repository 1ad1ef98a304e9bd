"""Reads hvprof's files, one per process that made a collective call."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, RunRecord, ranks_in_words
from hvscale.profiling.read.counters import Totals, size_limits
from hvscale.profiling.read.events import (
    SOURCES,
    Events,
    EventSource,
    Part,
    ProfileSource,
    Recording,
    Reducer,
    ordinal_ranges,
)
from hvscale.profiling.read.missing_profiles import missing_lines, why_missing
from hvscale.profiling.read.passes import PIECE, in_order, reduce_parts
from hvscale.profiling.read.profile_file import (
    BITWISE,
    BUFFER_BITS,
    CHUNK_RECORDS,
    POINT_TO_POINT,
    STEP,
    ProfileFile,
    ProfileHeader,
    StepSums,
    communicator_identities,
    job_numbers,
    ranks_of_job,
)
from hvscale.profiling.read.ring_file import INT64_MAX

IDENTITY_MODULUS = 1 << 64
MOST_LISTED = 8  # files in a warning
Opened = TypeVar("Opened", ProfileFile, ProfileHeader)


def read(
    run: RunFolder, reducers: Sequence[Reducer[Any]] = (), ranks: Collection[int] | None = None
) -> Recording | None:
    """Reads every hvprof profile of the run; None without any. `ranks` as in `ProfileSource.read`.

    Every message is read once and given to `reducers`. A file that cannot be read becomes a
    warning, as does one of another job if most files belong together.

    Raises RequestError if no file can be read, or if the files come from different jobs.
    """
    paths = sorted(run.hvprof.glob("rank-*.hvp"))
    if not paths:
        return None
    record = run.read()
    problems = _Problems()
    unread: set[int] = set()
    if ranks is None:
        profiles = _of_one_job(run, _opened(ProfileFile, paths, problems), problems)
    else:
        headers = _of_one_job(run, _opened(ProfileHeader, paths, problems), problems)
        recorded = {one.header.rank for one in headers}
        unread = recorded.difference(ranks) - {min(recorded, default=0)}
        chosen = [one.path for one in headers if one.header.rank not in unread]
        profiles = _opened(ProfileFile, chosen, problems)
    events = RecordedEvents(profiles)
    failed = reduce_parts(events, reducers, RecordedPart.scan)
    for number, error in failed.items():
        problems.unreadable.append((events.parts[number].profile.path, error))
    events.leave_out(failed)
    if not events.parts:
        raise min(problems.unreadable)[1] if problems.unreadable else RequestError(f"{run.hvprof} has no profile")
    uses_counters = not events.has_calls or any(part.profile.overwritten for part in events.parts)
    for part in events.parts:
        if uses_counters and not part.profile.being_written:  # also where this rank's ring did not overflow
            part.profile.check_counters()
        problems.add(part.profile)
    found = sorted({part.rank for part in events.parts})
    problems.add_missing(run, record, sorted(unread.union(found)))
    marks = events.step_marks()
    return Recording(
        "hvprof",
        events,
        record.np,
        found,
        unread=sorted(unread),
        overwritten=sum(problems.overwritten.values()),
        warnings=problems.warnings(record.library.flavour),
        incomplete="; ".join(problems.incomplete()) or None,
        steps={rank: times for rank, (times, _) in marks.items()},
        step_threads={rank: threads for rank, (_, threads) in marks.items()},
        clock_error_ns={part.rank: part.profile.header.clock_error_ns for part in events.parts},
        totals=events.totals(collectives=True) if uses_counters else None,
        point_to_point=events.totals(collectives=False),
        has_calls=events.has_calls,
        step_sums=events.step_sums() if uses_counters else {},
    )


# hvprof records MPI calls on every rank; Horovod's timeline, on rank 0 only, then just adds phases.
SOURCES.register("hvprof", ProfileSource(priority=20, read=read))


class _Problems:
    """What is wrong with the files of a run."""

    def __init__(self) -> None:
        self.unreadable: list[tuple[Path, RequestError]] = []
        self.foreign: list[str] = []
        self.started_by_ranks: list[Path] = []
        self.damaged: list[tuple[Path, str]] = []
        self.lost: list[tuple[Path, str]] = []
        self.missing: list[str] = []
        self.overwritten: defaultdict[int, int] = defaultdict(int)  # by rank
        self.large_counts_unseen: set[int] = set()  # ranks
        self.stopped: set[int] = set()  # ranks
        self.being_written: set[int] = set()  # ranks

    def add(self, profile: ProfileFile) -> None:
        header = profile.header
        self.damaged += [(profile.path, text) for text in profile.warnings]
        self.lost += [(profile.path, profile.lost)] if profile.lost is not None else []
        if header.large_counts_unseen:
            self.large_counts_unseen.add(header.rank)
        if header.stopped:
            self.stopped.add(header.rank)
        if profile.being_written:
            self.being_written.add(header.rank)
        if profile.overwritten:
            self.overwritten[header.rank] += profile.overwritten

    def add_missing(self, run: RunFolder, record: RunRecord, ranks: list[int]) -> None:
        missing = sorted(set(range(record.np)) - set(ranks))
        if missing:
            unknown = dict.fromkeys(missing, "it made no MPI call, or its file is lost")
            self.missing = missing_lines({**unknown, **why_missing(run, record, missing)})

    def warnings(self, flavour: str) -> list[str]:
        damaged = [*((path, str(error)) for path, error in self.unreadable), *self.damaged]
        found = [*_listed(sorted(damaged)), *self.foreign, *self.missing]
        if self.started_by_ranks:
            found.append(
                f"{_names(self.started_by_ranks)}: profiles of MPI programs on another number of ranks, which this job's ranks "
                f"started. Their messages are left out"
            )
        if self.large_counts_unseen:
            found.append(
                f"calls with large counts (such as MPI_Bcast_c, which mpi4py makes) are not recorded on "
                f"{ranks_in_words(sorted(self.large_counts_unseen))}: the ranks' MPI library has them, that of --mpi {flavour} "
                f"does not. Name the ranks' own MPI with --mpi"
            )
        found += self._out_of_memory()
        if self.being_written:
            found.append(
                f"{ranks_in_words(sorted(self.being_written))} still run: the figures are of their calls until now; "
                f"`hvscale watch` follows a job"
            )
        if self.overwritten:
            found.append(
                f"the ring overflowed: {sum(self.overwritten.values())} records of {ranks_in_words(sorted(self.overwritten))} were "
                f"overwritten. The breakdown's calls, bytes and seconds come from counters that include them, and its percentiles "
                f"from histograms; what is per step is of the steps that all rings hold. Set HVPROF_MIB higher to keep all records"
            )
        return found

    def incomplete(self) -> list[str]:
        """The reasons why messages are missing that were not overwritten."""
        lost = [*((path, str(error)) for path, error in self.unreadable), *self.lost]
        missing = ["; ".join(self.missing)] if self.missing else []
        return [*_listed(sorted(lost)), *self.foreign, *missing, *self._out_of_memory()]

    def _out_of_memory(self) -> list[str]:
        if not self.stopped:
            return []
        return [f"{ranks_in_words(sorted(self.stopped))} ran out of memory: later calls are not recorded"]


def _listed(found: list[tuple[Path, str]]) -> list[str]:
    """A line for each file, or one line for many."""
    if len(found) <= MOST_LISTED:
        return [text for _, text in found]
    return [
        f"{len(found)} profiles are truncated or damaged, and the rest of them is used: {_names([path for path, _ in found])}. "
        f"The first one: {found[0][1]}"
    ]


def _names(paths: Sequence[Path]) -> str:
    names = ", ".join(path.name for path in paths[:MOST_LISTED])
    return f"{names} and {len(paths) - MOST_LISTED} more" if paths[MOST_LISTED:] else names


def _opened(kind: Callable[[Path], Opened], paths: Sequence[Path], problems: _Problems) -> list[Opened]:
    found = []
    for path, profile in in_order(kind, paths):
        if isinstance(profile, RequestError):
            problems.unreadable.append((path, profile))
        else:
            found.append(profile)
    return found


def _of_one_job(run: RunFolder, profiles: list[Opened], problems: _Problems) -> list[Opened]:
    """The profiles without those of another job.

    A command may start several MPI programs in sequence, each on all ranks. A program on another
    number of ranks, which a rank started, is left out. Jobs without a common rank come from
    different runs: the one of most ranks is used, if it has more than half of them.

    Raises RequestError if no job has.
    """
    size = ranks_of_job([profile.header for profile in profiles])
    problems.started_by_ranks += [profile.path for profile in profiles if profile.header.world_size != size]
    profiles = [profile for profile in profiles if profile.header.world_size == size]
    ranks_of: defaultdict[int, set[int]] = defaultdict(set)
    for profile in profiles:
        if profile.header.job is not None:
            ranks_of[profile.header.job].add(profile.header.rank)
    if not ranks_of:
        return profiles
    main = max(ranks_of, key=lambda job: len(ranks_of[job]))
    others = {job for job, ranks in ranks_of.items() if not ranks & ranks_of[main]}
    foreign = [profile for profile in profiles if profile.header.job in others]
    if not foreign:
        return profiles
    if 2 * len(ranks_of[main]) <= len(set.union(*ranks_of.values())):
        first = next(profile for profile in profiles if profile.header.job == main)
        names = " and ".join(sorted(profile.path.name for profile in (first, foreign[0])))
        raise RequestError(
            f"{run.hvprof} mixes files of different runs: {names} were not recorded together. Move the files of each run into "
            f"its own folder"
        )
    ranks = ranks_in_words(sorted({profile.header.rank for profile in foreign}))
    problems.foreign.append(
        f"the profiles of {ranks} were recorded in another job, so they are ignored: remove them from {run.hvprof}"
    )
    return [profile for profile in profiles if profile.header.job not in others]


class RecordedPart(Part):
    """The messages in one profile file. `scan` reads all of it before anything else."""

    def __init__(self, profile: ProfileFile, operations: tuple[str, ...], communicators: NDArray[np.int32]) -> None:
        """`operations`: of all files. `communicators`: by index in the file, that in all files."""
        self.profile, self.rank = profile, profile.header.rank
        own = profile.header.operations[:STEP]
        self.names = operations
        self.operation_index = np.array([operations.index(name) if name else 0 for name in own], np.uint8)
        self._communicators = communicators
        self._sizes = profile.communicators["size"].astype(np.int32)
        self._used = np.flatnonzero(self._sizes)
        self.communicators = communicators[self._used].astype(np.int64)
        self.sizes = self._sizes[self._used].astype(np.int64)
        self._times: list[tuple[int, ...]] = []
        self.marks: list[NDArray[np.int64]] = []  # rows: times, threads

    @property
    def slots(self) -> int:  # type: ignore[override]
        return self.profile.slots

    def times(self) -> NDArray[np.int64]:
        return np.array(self._times, np.int64).reshape(-1, 4)

    def __len__(self) -> int:
        return int(self.times()[:, 0].sum())

    def scan(self, detail: bool) -> Iterator[Events]:
        """The messages, PIECE at a time; notes the step marks and the times, and checks the file.

        Raises RequestError if the file cannot be read or has no intact record.
        """
        ranges: NDArray[np.int64] | None = None
        piece = _Columns(min(PIECE, self.slots), detail)
        self._times, self.marks = [], []
        for chunk in self.profile.chunks():
            is_step = chunk["operation"] == STEP
            if is_step.any():
                self.marks.append(self._marks(chunk[is_step]))
                chunk = chunk.compress(~is_step)  # indexing with a mask is ten times slower
            if len(chunk):
                start, offset = chunk["start_ns"], self.profile.header.clock_offset_ns
                last_end = int((start + chunk["duration_ns"]).max())
                self._times.append((len(chunk), *(int(time) + offset for time in (start.min(), start.max(), last_end))))
                ranges = ordinal_ranges(chunk["communicator"], chunk["ordinal"], len(self._sizes), ranges)
            else:
                self._times.append((0, INT64_MAX, -INT64_MAX, -INT64_MAX))
            if piece.length + len(chunk) > piece.capacity:
                yield piece.events(self)
                piece = _Columns(min(PIECE, self.slots), detail)
            piece.append(self, chunk)
        if ranges is None:
            ranges = ordinal_ranges(np.empty(0, np.int64), np.empty(0, np.int64), len(self._sizes))
        self.ordinals = ranges[self._used]
        if piece.length:
            yield piece.events(self)

    def read(self, first: int, count: int, detail: bool) -> Events:
        piece = _Columns(min(count, self.slots - first), detail)
        for position in range(first, first + piece.capacity, CHUNK_RECORDS):
            chunk = self.profile.read(position, min(CHUNK_RECORDS, first + piece.capacity - position))
            is_step = chunk["operation"] == STEP
            piece.append(self, chunk.compress(~is_step) if is_step.any() else chunk)
        return piece.events(self)

    def _marks(self, records: NDArray[Any]) -> NDArray[np.int64]:
        times = records["start_ns"].astype(np.int64) + self.profile.header.clock_offset_ns
        return np.stack([times, (records["buffer_and_thread"] >> np.uint64(BUFFER_BITS)).astype(np.int64)])

    def columns(self, records: NDArray[Any], detail: bool) -> dict[str, NDArray[Any]]:
        buffer_and_thread, communicator = records["buffer_and_thread"], records["communicator"]
        found = {
            "operation": self.operation_index[records["operation"]],
            "bytes": records["bytes"],
            "start_ns": records["start_ns"] + np.uint64(self.profile.header.clock_offset_ns % IDENTITY_MODULUS),
            "duration_ns": records["duration_ns"],
            "communicator_size": self._sizes[communicator],
            "bitwise": records["flags"] & BITWISE != 0,
            "thread": buffer_and_thread >> np.uint64(BUFFER_BITS),
        }
        if detail:
            found["communicator"] = self._communicators[communicator]
            found["ordinal"] = records["ordinal"]
            found["buffer"] = buffer_and_thread & np.uint64((1 << BUFFER_BITS) - 1)
        return found


class _Columns:
    """The columns of `Events`, filled chunk by chunk."""

    TYPES: ClassVar[dict[str, type]] = {
        "operation": np.uint8,
        "bytes": np.int64,
        "start_ns": np.int64,
        "duration_ns": np.int64,
        "communicator_size": np.int32,
        "bitwise": np.bool_,
        "thread": np.uint16,
    }
    DETAILS: ClassVar[dict[str, type]] = {"communicator": np.int32, "ordinal": np.uint32, "buffer": np.uint64}

    def __init__(self, capacity: int, detail: bool) -> None:
        types = {**self.TYPES, **(self.DETAILS if detail else {})}
        self.capacity, self.length, self.detail = capacity, 0, detail
        self.columns: dict[str, NDArray[Any]] = {name: np.empty(capacity, dtype) for name, dtype in types.items()}

    def append(self, part: RecordedPart, records: NDArray[Any]) -> None:
        end = self.length + len(records)
        for name, values in part.columns(records, self.detail).items():
            column = self.columns[name]
            column[self.length : end] = values.view(column.dtype) if values.itemsize == column.itemsize else values
        self.length = end

    def events(self, part: RecordedPart) -> Events:
        columns = {name: column[: self.length] for name, column in self.columns.items()}
        rank = np.broadcast_to(np.int32(part.rank), self.length)
        return Events(operations=part.names, communicators=(), rank=rank, **columns)


class RecordedEvents(EventSource):
    """The messages in the profile files of a run, read from the files whenever they are needed."""

    def __init__(self, profiles: list[ProfileFile]) -> None:
        own = (name for profile in profiles for name in profile.header.operations[:STEP])
        self.operations = tuple(dict.fromkeys(name for name in own if name))
        identities: dict[int, int] = {}  # identity -> index in `communicators`
        self._parts = []
        profiles = sorted(profiles, key=lambda one: (one.header.rank, one.header.started_ns))
        for profile, job in zip(profiles, job_numbers([one.header for one in profiles]), strict=True):
            communicators = _communicator_indices(profile, job, identities)
            self._parts.append(RecordedPart(profile, self.operations, communicators))
        self.communicators = tuple(identities)

    @property
    def parts(self) -> list[RecordedPart]:
        return self._parts

    def leave_out(self, numbers: Collection[int]) -> None:
        """Removes parts, by position."""
        self._parts = [part for number, part in enumerate(self._parts) if number not in numbers]

    @property
    def detailed(self) -> bool:
        return True

    @property
    def has_calls(self) -> bool:
        """Whether each process recorded its calls; else some only counted them."""
        return all(part.profile.header.capacity for part in self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def step_sums(self) -> dict[int, StepSums]:
        """The sums over the steps of each rank that marked two or more."""
        found: dict[int, StepSums] = {}
        for part in self.parts:
            sums = part.profile.header.steps
            if sums is not None:
                found[part.rank] = found[part.rank] + sums if part.rank in found else sums
        return found

    def step_marks(self) -> dict[int, NDArray[np.int64]]:
        """By rank: the times of its step marks, ascending, and their threads.

        If a rank ran several programs, those of the one with the most marks: the time between two
        programs is no step.
        """
        marks: dict[int, NDArray[np.int64]] = {}
        for part in self.parts:
            if not part.marks:
                continue
            own = np.concatenate(part.marks, axis=1)
            own = own[:, np.argsort(own[0], kind="stable")]
            best = marks.setdefault(part.rank, own)
            if (own.shape[1], -own[0, 0]) > (best.shape[1], -best[0, 0]):
                marks[part.rank] = own
        return marks

    def totals(self, collectives: bool) -> Totals | None:
        """The counters of all collectives, or of all point-to-point calls; None if none."""
        chosen: list[NDArray[Any]] = []
        ranks: list[NDArray[np.int32]] = []
        operations: list[NDArray[np.uint8]] = []
        for part in self.parts:
            counters = part.profile.counters
            operation = (counters["key"] & np.uint64(63)).astype(np.int64)
            names = part.operation_index
            wanted = (np.isin(operation, POINT_TO_POINT) != collectives) & (operation < len(names))
            wanted &= counters["calls"] > 0  # a killed process may have begun a counter without a call
            chosen.append(counters[wanted])
            ranks.append(np.full(len(chosen[-1]), part.rank, np.int32))
            operations.append(names[operation[wanted]])
        entries = np.concatenate(chosen)
        if not len(entries):
            return None
        smallest, largest = size_limits(entries)
        return Totals(
            operations=self.operations,
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
            in_steps=entries["key"] >> np.uint64(14) & np.uint64(1) != 0,
        )


def _communicator_indices(profile: ProfileFile, job: int, identities: dict[int, int]) -> NDArray[np.int32]:
    """For each entry of the file's table, the index of its identity; adds new `identities`."""
    used = np.flatnonzero(profile.communicators["size"])
    found = communicator_identities(profile.communicators[used], profile.header.rank, job)
    indices = np.zeros(len(profile.communicators), np.int32)
    indices[used] = [identities.setdefault(identity, len(identities)) for identity in found.tolist()]
    return indices
