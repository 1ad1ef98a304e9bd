"""The breakdown by message size, as tables for the terminal and as a CSV file."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from hvscale.core.units import human_bytes, human_range, human_seconds, human_share
from hvscale.profiling.analyze.breakdown import Breakdown, RankRow, Row
from hvscale.profiling.analyze.explanation import ExplainedBreakdown
from hvscale.profiling.analyze.rank_comparison import timeline_ranks
from hvscale.profiling.analyze.ranks_and_nodes import Figures
from hvscale.report.csv_file import write_csv
from hvscale.report.tables import plain_table

RANK_COLUMNS = ("node", "local_rank", *Figures.model_fields)


def _human_bandwidth(gigabytes_per_second: float | None) -> str:
    if gigabytes_per_second is None:
        return "-"
    return "<0.01" if gigabytes_per_second < 0.005 else f"{gigabytes_per_second:.2f}"


def table(breakdown: Breakdown) -> Table:
    """Rows over all ranks by operation, and the total. About 80 columns wide."""
    return _table(
        f"{Path(breakdown.run).name}: communication, np {breakdown.np}, from {breakdown.source}"
        + (f"\nunder {breakdown.library}" if breakdown.library else ""),
        _caption(breakdown),
        breakdown.rows,
    )


def rank_rows_table(breakdown: ExplainedBreakdown) -> Table:
    """As `table`, for each rank; of many ranks those to look at first, and typical ones."""
    ranks = timeline_ranks(breakdown)
    rows = [row for rank in ranks for row in breakdown.rank_rows if row.rank == rank]
    caption = "%: of the rank's time; algbw, busbw: 10^9 bytes a second"
    left_out = len(breakdown.ranks) - len(ranks)
    if left_out > 0:
        caption += f"\n{left_out} more ranks: --json and --csv have all"
    return _table("by rank and message size", caption, rows)


def point_to_point_table(breakdown: Breakdown) -> Table:
    """Sends and receives by size, over all ranks."""
    return _table("point-to-point calls", "%: of the total of these calls", breakdown.point_to_point)


def _table(title: str, caption: str, rows: Sequence[Row]) -> Table:
    result = plain_table(
        title, caption, *("size", "calls", "bytes", "total", "%", "mean", "p50", "p99", "algbw", "busbw")
    )
    headings: tuple[str, ...] = ()
    for row in rows:
        previous, headings = headings, _headings(row)
        for level, heading in enumerate(headings):
            if headings[: level + 1] != previous[: level + 1]:
                result.add_row(" " * level + heading, style="bold")
        result.add_row(*_cells(row))
    result.add_section()
    calls, size = sum(row.calls for row in rows), sum(row.bytes for row in rows)
    result.add_row(
        "total", str(calls), human_bytes(size), human_seconds(sum(row.seconds for row in rows)), style="bold"
    )
    return result


def _caption(breakdown: Breakdown) -> str:
    caption = "%: of the total's time; algbw, busbw: 10^9 bytes a second"
    calls = sum(row.bitwise_calls for row in breakdown.rows)
    if calls:
        seconds = human_seconds(sum(row.bitwise_seconds for row in breakdown.rows))
        caption += f"\n{calls} calls ({seconds}) are bitwise: ranks coordinate what to send, and wait"
    return caption


def _headings(row: Row) -> tuple[str, ...]:
    return (f"rank {row.rank}", row.operation) if isinstance(row, RankRow) else (row.operation,)


def _cells(row: Row) -> list[str]:
    return [
        f"  {human_range(row.bytes_min, row.bytes_max)}",
        str(row.calls),
        human_bytes(row.bytes),
        human_seconds(row.seconds),
        human_share(row.share),
        *(human_seconds(seconds) for seconds in (row.mean_seconds, row.p50_seconds, row.p99_seconds)),
        _human_bandwidth(row.algbw_gigabytes_per_second),
        _human_bandwidth(row.busbw_gigabytes_per_second),
    ]


def write_breakdown_csv(breakdown: ExplainedBreakdown, path: Path) -> None:
    """Write the rows of the JSON document, and a row for each rank with its waiting.

    `rank` is empty in rows over all ranks, `operation` in those over all messages of a rank.

    Raises RequestError if `path` cannot be written.
    """
    columns = dict.fromkeys(["rank", *Row.model_fields, *RANK_COLUMNS])
    write_csv(path, [*breakdown.rows, *breakdown.rank_rows, *breakdown.by_rank], list(columns))
