"""The breakdown: communication time of a run by operation and message size."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError, UntrustedError
from hvscale.core.run_folder import ABANDONED, RunFolder, RunRecord
from hvscale.profiling.analyze.durations import EXACT_CALLS
from hvscale.profiling.analyze.grouping import (
    Bins,
    GroupSums,
    Key,
    add_figures,
    bin_warnings,
    group_events,
    group_totals,
    parse_bins,
)
from hvscale.profiling.read.counters import Totals
from hvscale.profiling.read.events import Events, EventSource, Part, Recording, Reducer, no_events, sources_by_priority
from hvscale.profiling.read.missing_profiles import missing_lines, why_missing
from hvscale.profiling.read.passes import reduce_messages

NO_COLLECTIVE = "no collective was recorded: the job made none, or only calls that this profile does not record"
CACHE_CAPACITY = "HOROVOD_CACHE_CAPACITY"
RECORDERS = {"HVPROF_DIRECTORY", "HOROVOD_TIMELINE"}  # the variables that make ranks record


class Row(BaseModel):
    """The messages of one operation with sizes in one bin, both limits inclusive.

    Bandwidths are total bytes over total time, in 10^9 bytes/s; None without bytes or time.
    """

    operation: str
    bytes_min: int
    bytes_max: int | None
    calls: int
    bytes: int
    seconds: float
    share: float  # of the seconds of all rows (RankRow: of all rows of the rank)
    mean_seconds: float
    p50_seconds: float  # percentiles interpolate linearly between the two nearest calls
    p99_seconds: float
    algbw_gigabytes_per_second: float | None
    busbw_gigabytes_per_second: float | None
    # A bitwise reduction carries no gradients: Horovod's ranks use one per cycle to negotiate which
    # tensors to send next.
    bitwise_calls: int
    bitwise_seconds: float


class RankRow(Row):
    """A row for one rank."""

    rank: int


class Breakdown(VersionedDocument):
    """The document that `hvscale breakdown --json` prints (by alias)."""

    schema_: Literal["hvscale/breakdown/1"] = "hvscale/breakdown/1"
    run: str
    library: str  # that the ranks used: MPI, or what carried the messages beside MPI
    source: str
    np: int
    ranks: list[int]
    rows: list[Row]
    rank_rows: list[RankRow]
    point_to_point: list[Row]  # sends and receives; `share` of the other rows excludes them
    overwritten: int
    incomplete: str | None = None  # why messages of the job are missing
    warnings: list[str]


def breakdown(run: RunFolder, bins: str = "study") -> Breakdown:
    """Tabulates a run by message size; `bins` as in `parse_bins`.

    Raises RequestError if `bins` is invalid, or if run.json or all profiles are unreadable.
    """
    table = RankTables(parse_bins(bins))
    return table.breakdown(read_recording(run, table), str(run.path))


def read_recording(run: RunFolder, *reducers: Reducer[Any], ranks: Collection[int] | None = None) -> Recording:
    """Reads every message of a run, once, from the available source with the highest priority.

    Each message goes to the `reducers`. Warns if the ranks used another library than requested.
    `ranks`: those whose messages are needed, as in `ProfileSource.read`; None: all.

    Raises RequestError if run.json or all profiles are unreadable.
    """
    record, recording = run.read(), _read_messages(run, reducers, ranks)
    difference = [record.library_difference] if record.library_difference else []
    library = ", beside ".join(filter(None, [recording.library, record.measured_library.name]))
    return replace(recording, library=library, warnings=[*recording.warnings, *difference])


def _read_messages(run: RunFolder, reducers: Sequence[Reducer[Any]], ranks: Collection[int] | None) -> Recording:
    for source in sources_by_priority():
        recording = source.read(run, reducers, ranks)
        if recording is not None:
            if run.read().was_abandoned:
                recording.warnings.append(ABANDONED)
            return recording
    record = run.read()
    expected = "hvprof" if record.library.has_mpi else "horovod-timeline"
    warnings = missing_lines(why_missing(run, record, list(range(record.np)))) if expected == "hvprof" else []
    incomplete = "; ".join(warnings) or None
    warnings += [ABANDONED] if record.was_abandoned else []
    return Recording(expected, no_events(), record.np, [], warnings=warnings, incomplete=incomplete)


def require_complete(run: RunFolder, incomplete: str | None) -> None:
    """Raises UntrustedError with `incomplete`, the cause, if a run's profile lacks messages."""
    if incomplete is not None:
        raise UntrustedError(f"the profile of {run.path} is incomplete, so its figures cannot be trusted: {incomplete}")


def require_profile(run: RunFolder, recording: Recording) -> None:
    """Raises RequestError if a run has no profile because it was not started to record one."""
    if not recording.ranks and RECORDERS.isdisjoint(run.read().rank_environment):
        raise RequestError(f"{run.path} has no profile: record one with `hvscale profile`")


def unused_horovod_settings(record: RunRecord, table: Breakdown) -> list[str]:
    """A warning if the job was given Horovod's settings, but its profile shows no Horovod.

    Under MPI, the bitwise reductions show it. Horovod makes none if its cache is off.
    """
    asked = sorted(name for name in record.env_asked if name.startswith("HOROVOD_"))
    shown = any(row.bitwise_calls for row in table.rows) or (table.source != "hvprof" and bool(table.ranks))
    cache_may_be_off = CACHE_CAPACITY in record.environment_passed and record.env_asked.get(CACHE_CAPACITY, "0") == "0"
    is_unknown = cache_may_be_off or table.incomplete is not None or record.state != "finished"
    if not asked or shown or is_unknown:
        return []
    return [f"{', '.join(asked)}: no effect, because the profile shows no Horovod"]


def tabulate(recording: Recording, bins: Bins, run: str) -> Breakdown:
    """Tabulates a recording in another pass over its messages: see `RankTables.breakdown`."""
    table = RankTables(bins)
    reduce_messages(recording.events, table)
    return table.breakdown(recording, run)


class RankTables(Reducer[dict[Key, GroupSums]]):
    """The figures of each rank and of all ranks, by operation and bin."""

    def __init__(self, bins: Bins) -> None:
        self.bins = bins
        self.operations: tuple[str, ...] = ()
        self.exact = True
        self.all_ranks: dict[Key, GroupSums] = {}
        self.rank_rows: dict[int, list[RankRow]] = {}
        self._rank = -1
        self._of_rank: dict[Key, GroupSums] = {}

    def begin(self, source: EventSource) -> None:
        self.operations = source.operations
        self.exact = sum(part.slots for part in source.parts) <= EXACT_CALLS

    def reduce(self, part: Part, events: Events) -> dict[Key, GroupSums]:
        return group_events(events, self.bins, self.exact)

    def add(self, part: Part, found: dict[Key, GroupSums]) -> None:
        if part.rank != self._rank:
            self._finish_rank()
            self._rank = part.rank
        add_figures(self._of_rank, found)

    def _finish_rank(self) -> None:
        """Reduces the figures of a rank, which are large, to its rows."""
        if self._of_rank:
            self.rank_rows[self._rank] = self._rank_rows(self._rank, self._of_rank)
            add_figures(self.all_ranks, self._of_rank)
            self._of_rank = {}

    def breakdown(self, recording: Recording, run: str) -> Breakdown:
        """The document: rows over all ranks and rows for each rank, of bins with calls.

        Sorts operations by their total time, and the rows of an operation by size.
        """
        self._finish_rank()
        if recording.totals is not None:
            self._use(recording.totals)
        counted = [totals for totals in (recording.totals, recording.point_to_point) if totals is not None]
        warnings = [*recording.warnings, *bin_warnings(counted, self.bins)]
        if not self.all_ranks:
            warnings.append(NO_COLLECTIVE)
        return Breakdown(
            run=run,
            library=recording.library,
            source=recording.source,
            np=recording.np,
            ranks=recording.ranks,
            rows=self._rows(self.all_ranks, self.operations, recording.ranks_per_event),
            rank_rows=[row for rank in sorted(self.rank_rows) for row in self.rank_rows[rank]],
            point_to_point=self._point_to_point(recording.point_to_point),
            overwritten=recording.overwritten,
            incomplete=recording.incomplete,
            warnings=warnings,
        )

    def _use(self, totals: Totals) -> None:
        """Replaces the figures by those of the counters."""
        by_rank = group_totals(totals, self.bins)
        self.operations, self.all_ranks = totals.operations, {}
        self.rank_rows = {rank: self._rank_rows(rank, found) for rank, found in by_rank.items()}
        for found in by_rank.values():
            add_figures(self.all_ranks, found)

    def _point_to_point(self, totals: Totals | None) -> list[Row]:
        if totals is None:
            return []
        found: dict[Key, GroupSums] = {}
        for of_rank in group_totals(totals, self.bins).values():
            add_figures(found, of_rank)
        return self._rows(found, totals.operations, 1)

    def _rows(self, found: dict[Key, GroupSums], operations: tuple[str, ...], ranks_per_event: int) -> list[Row]:
        rows = [Row(**self._fields(key, operations), **one.row(ranks_per_event)) for key, one in found.items()]
        return _sorted_with_shares(rows)

    def _rank_rows(self, rank: int, found: dict[Key, GroupSums]) -> list[RankRow]:
        rows = [RankRow(rank=rank, **self._fields(key, self.operations), **one.row(1)) for key, one in found.items()]
        return _sorted_with_shares(rows)

    def _fields(self, key: Key, operations: tuple[str, ...]) -> dict[str, Any]:
        bytes_min, bytes_max = self.bins.limits(key[1])
        return {"operation": operations[key[0]], "bytes_min": bytes_min, "bytes_max": bytes_max}


RowKind = TypeVar("RowKind", bound=Row)


def _sorted_with_shares(rows: list[RowKind]) -> list[RowKind]:
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row.operation] = seconds.get(row.operation, 0.0) + row.seconds
    total = sum(seconds.values())
    return [
        row.model_copy(update={"share": row.seconds / total if total else 0.0})
        for row in sorted(rows, key=lambda row: (-seconds[row.operation], row.operation, row.bytes_min))
    ]
