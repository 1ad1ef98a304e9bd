"""The breakdown: communication time of a run by operation and message size."""

from dataclasses import replace
from typing import Literal, TypeVar

from pydantic import BaseModel

from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import UntrustedError
from hvscale.core.run_folder import ABANDONED, RunFolder
from hvscale.profiling.analyze.grouping import Bins, EventGroups, Groups, TotalGroups, parse_bins
from hvscale.profiling.read.events import Recording, no_events, sources_by_priority
from hvscale.profiling.read.missing_profiles import why_missing


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
    library: str  # the MPI library that the ranks used
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
    ranges = parse_bins(bins)
    return tabulate(read_recording(run), ranges, str(run.path))


def read_recording(run: RunFolder, detail: bool = False) -> Recording:
    """Reads every message of a run from the available source with the highest priority.

    `detail`: also loads what `Events` calls details. Warns if the ranks used another library than
    requested.

    Raises RequestError if run.json or all profiles are unreadable.
    """
    record, recording = run.read(), _read_messages(run, detail)
    difference = [record.library_difference] if record.library_difference else []
    return replace(recording, library=record.measured_library.name, warnings=[*recording.warnings, *difference])


def _read_messages(run: RunFolder, detail: bool) -> Recording:
    for source in sources_by_priority():
        recording = source.read(run, detail)
        if recording is not None:
            if run.read().was_abandoned:
                recording.warnings.append(ABANDONED)
            return recording
    record = run.read()
    expected = "hvprof" if record.library.has_mpi else "horovod-timeline"
    warnings = why_missing(run, record, list(range(record.np))) if expected == "hvprof" else []
    incomplete = "; ".join(warnings) or None
    warnings += [ABANDONED] if record.was_abandoned else []
    return Recording(expected, no_events(), record.np, [], warnings=warnings, incomplete=incomplete)


def require_complete(run: RunFolder, incomplete: str | None) -> None:
    """Raises UntrustedError with `incomplete`, the cause, if a run's profile lacks messages."""
    if incomplete is not None:
        raise UntrustedError(f"the profile of {run.path} is incomplete, so its figures cannot be trusted: {incomplete}")


def tabulate(recording: Recording, bins: Bins, run: str) -> Breakdown:
    """Tabulates a recording: rows over all ranks and rows for each rank, of bins with calls.

    Sorts operations by their total time, and the rows of an operation by size.
    """
    warnings = list(recording.warnings)
    groups: Groups = EventGroups(recording.events, bins)
    if recording.totals is not None:
        groups = TotalGroups(recording.totals, bins)
        if groups.split_classes:
            warnings.append(
                "a bin edge that is not a power of two splits sizes that were counted together: they count in the bin of "
                "their mean"
            )
    if not len(groups.keys):
        warnings.append(
            "no collective was recorded: the job made none, or only calls that this profile does not record"
        )
    rank_rows: dict[int, list[RankRow]] = {rank: [] for rank in recording.ranks}
    for group in range(len(groups.keys)):
        rank = groups.rank(group)
        rank_rows.setdefault(rank, []).append(RankRow(rank=rank, **groups.fields(group, group + 1, 1)))
    sends = recording.point_to_point
    return Breakdown(
        run=run,
        library=recording.library,
        source=recording.source,
        np=recording.np,
        ranks=recording.ranks,
        rows=_rows_across_ranks(groups, recording.ranks_per_event),
        rank_rows=[row for rank in sorted(rank_rows) for row in _sorted_with_shares(rank_rows[rank])],
        point_to_point=_rows_across_ranks(TotalGroups(sends, bins), 1) if sends is not None else [],
        overwritten=recording.overwritten,
        incomplete=recording.incomplete,
        warnings=warnings,
    )


def _rows_across_ranks(groups: Groups, ranks_per_event: int) -> list[Row]:
    return _sorted_with_shares(
        [Row(**groups.fields(first, last, ranks_per_event)) for first, last in groups.across_ranks()]
    )


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
