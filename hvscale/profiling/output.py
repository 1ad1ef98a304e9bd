"""Figures for people: how they are written, the look of a table in the terminal, and the breakdown's own; CSV files."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel
from rich import box
from rich.table import Table

from hvscale.core.csv_text import csv_text
from hvscale.errors import RequestError
from hvscale.profiling.bins import GIB, KIB, MIB
from hvscale.profiling.breakdown import Breakdown, RankRow, Row
from hvscale.run_folder import write_text


def human_bytes(size: float) -> str:
    """As a table shows it, with three digits: 128 KiB, 1.5 GiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{_three_digits(size / unit)} {name}"
    return f"{size:.0f} B"


def human_seconds(seconds: float) -> str:
    """As a table shows it, with three digits: 12.3 ms, 4.56 us."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{_three_digits(seconds / unit)} {name}"
    return f"{seconds * 1e9:.0f} ns"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def human_range(bytes_min: int, bytes_max: int | None) -> str:
    """A bin by its edges. The lower one is that of the bin below: 128 KiB-16 MiB begins just above 128 KiB."""
    if bytes_max is None:
        return f"> {human_bytes(bytes_min - 1)}"
    low, high = human_bytes(bytes_min - 1 if bytes_min > 1 else bytes_min), human_bytes(bytes_max)
    if bytes_min >= bytes_max:
        return high
    # 16-32 MiB: the unit once where it is the same.
    return f"{low.split()[0] if low.split()[1] == high.split()[1] else low}-{high}"


def human_share(share: float) -> str:
    """In percent, without its sign."""
    return "<1" if 0 < share < 0.005 else f"{share:.0%}".rstrip("%")


def _human_bandwidth(gigabytes_per_second: float | None) -> str:
    if gigabytes_per_second is None:
        return "-"
    return "<0.01" if gigabytes_per_second < 0.005 else f"{gigabytes_per_second:.2f}"


def plain_table(title: str | None, caption: str | None, first: str, *columns: str) -> Table:
    """The look of all tables: the first column on the left, figures on the right."""
    result = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    result.add_column(first, no_wrap=True)
    for name in columns:
        result.add_column(name, justify="right", no_wrap=True)
    return result


def table(breakdown: Breakdown, per_rank: bool = False) -> Table:
    """The rows over all ranks, or those of each rank, grouped by operation, with a line for the total. About 80 columns wide."""
    return _table(
        f"{Path(breakdown.run).name}: communication, np {breakdown.np}, from {breakdown.source}"
        + (f"\nunder {breakdown.library}" if breakdown.library else ""),
        _caption(breakdown, per_rank),
        breakdown.rank_rows if per_rank else breakdown.rows,
    )


def point_to_point_table(breakdown: Breakdown) -> Table:
    """Sends and receives by size, over all ranks."""
    return _table("point-to-point calls", "%: of their own total", breakdown.point_to_point)


def _table(title: str, caption: str, rows: Sequence[Row]) -> Table:
    result = plain_table(
        title, caption, *("size", "calls", "bytes", "total", "%", "mean", "p50", "p99", "algbw", "busbw")
    )
    headings: tuple[str, ...] = ()
    for row in rows:
        above, headings = headings, _headings(row)
        for level, heading in enumerate(headings):
            if headings[: level + 1] != above[: level + 1]:
                result.add_row(" " * level + heading, style="bold")
        result.add_row(*_cells(row))
    result.add_section()
    calls, size = sum(row.calls for row in rows), sum(row.bytes for row in rows)
    result.add_row(
        "total", str(calls), human_bytes(size), human_seconds(sum(row.seconds for row in rows)), style="bold"
    )
    return result


def _caption(breakdown: Breakdown, per_rank: bool) -> str:
    caption = f"%: of the {'rank' if per_rank else 'total'}'s time; algbw, busbw: 10^9 bytes a second"
    calls = sum(row.bitwise_calls for row in breakdown.rows)
    if calls:
        seconds = human_seconds(sum(row.bitwise_seconds for row in breakdown.rows))
        caption += f"\n{calls} calls ({seconds}) are bitwise: ranks agree on what to send, and wait"
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


def write_csv(breakdown: Breakdown, path: Path) -> None:
    """The columns of the JSON document; `rank` is empty in the rows over all ranks. Raises RequestError when `path` cannot be written."""
    write_rows(path, ["rank", *Row.model_fields], [*breakdown.rows, *breakdown.rank_rows])


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[BaseModel]) -> None:
    """A CSV file with a header. Raises RequestError when `path` cannot be written."""
    try:
        write_text(path, csv_text(columns, [row.model_dump() for row in rows]))
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error
