"""A breakdown for people: a table for the terminal, and a CSV file."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from hvscale.errors import RequestError
from hvscale.profiling.bins import GIB, KIB, MIB
from hvscale.profiling.breakdown import Breakdown, RankRow, Row
from hvscale.run_folder import write_atomically


def human_bytes(size: float) -> str:
    """As a table shows it: 128 KiB, 1.5 GiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size:.4g} B"


def human_seconds(seconds: float) -> str:
    """As a table shows it: 12.3 ms, 4.56 us, three digits."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{seconds * 1e9:.3g} ns"


def human_share(share: float) -> str:
    """As a table shows it: whole per cent."""
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"


def human_range(bytes_min: int, bytes_max: int | None) -> str:
    """A bin by its limits. The lower one is that of the bin below, so that 128 KiB - 16 MiB begins just above 128 KiB."""
    if bytes_max is None:
        return f"> {human_bytes(bytes_min - 1)}"
    if bytes_min >= bytes_max:
        return human_bytes(bytes_max)
    return f"{human_bytes(bytes_min if bytes_min == 1 else bytes_min - 1)} - {human_bytes(bytes_max)}"


def table(breakdown: Breakdown, per_rank: bool = False) -> Table:
    """The rows over all ranks, or those of each rank, with a line for the total."""
    result = Table(
        title=f"{breakdown.run}: communication by message size ({breakdown.source}, {breakdown.np} ranks)",
        caption="algbw, busbw: GB/s, 10^9 bytes a second",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    if per_rank:
        result.add_column("rank", justify="right", no_wrap=True)
    result.add_column("operation")
    result.add_column("size", justify="right")
    for name in ("calls", "bytes", "total", "share", "mean", "p50", "p99", "algbw", "busbw"):
        result.add_column(name, justify="right", no_wrap=True)
    rows: Sequence[Row] = breakdown.rank_rows if per_rank else breakdown.rows
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        rank = [str(row.rank)] if isinstance(row, RankRow) else []
        apart = following is None or (
            isinstance(row, RankRow) and isinstance(following, RankRow) and row.rank != following.rank
        )
        result.add_row(*rank, *_cells(row), end_section=apart)
    calls, seconds = sum(row.calls for row in rows), sum(row.seconds for row in rows)
    total = [f"{calls:,}", human_bytes(sum(row.bytes for row in rows)), human_seconds(seconds)]
    result.add_row(
        *([""] if per_rank else []), "total", "", *total, "100%" if rows and not per_rank else "", style="bold"
    )
    return result


def _cells(row: Row) -> list[str]:
    return [
        row.operation,
        human_range(row.bytes_min, row.bytes_max),
        f"{row.calls:,}",
        human_bytes(row.bytes),
        human_seconds(row.seconds),
        human_share(row.share),
        human_seconds(row.mean_seconds),
        human_seconds(row.p50_seconds),
        human_seconds(row.p99_seconds),
        *(
            "-" if value is None else f"{value:.3g}"
            for value in (row.algbw_gigabytes_per_second, row.busbw_gigabytes_per_second)
        ),
    ]


def write_csv(breakdown: Breakdown, path: Path) -> None:
    """The columns of the JSON document; `rank` is empty in the rows over all ranks. Raises RequestError when `path` cannot be written."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["rank", *Row.model_fields], lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.model_dump() for row in (*breakdown.rows, *breakdown.rank_rows))
    try:
        write_atomically(path, lambda stream: stream.write(text.getvalue().encode()))
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error
