"""A comparison of placements for people: a table for the terminal, a line on where the overhead
comes from, and a CSV file.
"""

from pathlib import Path

from rich.table import Table

from hvscale.core.units import human_interval, human_number, human_range, human_seconds
from hvscale.profiling.compare import Comparison, ComparisonRow
from hvscale.report.csv_file import write_csv
from hvscale.report.tables import plain_table
from hvscale.studies.placement_comparison.study import PlacementComparison, PlacementRow

SAID = {None: "", "unknown": "unknown: one round"}


def placements_table(document: PlacementComparison) -> Table:
    """A row for each placement. About 80 columns wide."""
    by_seconds = document.measured_by == "seconds"
    basis = "seconds: last rank's start to last one's end" if by_seconds else "throughput: of all ranks"
    table = plain_table(
        f"{Path(document.folder).name}: np {document.np}",
        f"{basis}\noverhead: time over {next(iter(document.launch))}'s, round by round\n"
        f"intervals: {document.confidence:.0%}, over fresh starts",
        *("placement", "runs", document.unit or "throughput", "interval", "overhead %", "interval", ""),
    )
    for row in document.rows:
        table.add_row(*cells(row, by_seconds))
    return table


def cells(row: PlacementRow, by_seconds: bool) -> list[str]:
    value = (
        (row.seconds, row.seconds_low, row.seconds_high)
        if by_seconds
        else (row.throughput, row.throughput_low, row.throughput_high)
    )
    low, high = row.overhead_percent_low, row.overhead_percent_high
    return [
        row.placement,
        str(row.runs),
        human_number(value[0], 4),
        human_interval(value[1], value[2], 4),
        signed(row.overhead_percent),
        f"{signed(low)} to {signed(high)}" if low is not None and high is not None else "",
        SAID.get(row.verdict, row.verdict or ""),
    ]


def signed(percent: float | None) -> str:
    return "" if percent is None else f"{percent:+.1f}" if abs(percent) < 100 else f"{percent:+.0f}"


def where_from(comparison: Comparison) -> str:
    """What became of the communication time, and the messages that it went into most; for each
    rank.
    """
    name = Path(comparison.run_after).name
    total = comparison.total
    if total.verdict not in ("more", "less"):
        return f"{name}: communication takes no other time, as far as the interval shows"
    change = growth(total)
    most = max(comparison.rows, key=lambda row: growth(row) if change > 0 else -growth(row))
    seconds, in_most = (human_seconds(abs(value) / comparison.np) for value in (change, growth(most)))
    return (
        f"{name}: communication takes {seconds} {total.verdict} for a rank and {comparison.per}; "
        f"most changed {most.operation} of {human_range(most.bytes_min, most.bytes_max)}, by {in_most}"
    )


def growth(row: ComparisonRow) -> float:
    """In seconds, summed over the ranks."""
    return row.seconds_after - row.seconds_before


def write_placements_csv(document: PlacementComparison, path: Path) -> None:
    """The columns of the JSON document's rows. Raises RequestError when `path` cannot be
    written.
    """
    write_csv(path, document.rows)
