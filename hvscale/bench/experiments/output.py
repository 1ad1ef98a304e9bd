"""The findings on a study's claims, as text for the terminal and as the table of the page."""

from hvscale.bench.experiments.document import ExperimentDocument, StatementRow
from hvscale.bench.experiments.statements import StatementComparison
from hvscale.report.tables import TableModel

MAX_COMPARISONS = 4  # per claim, the decisive ones; the page shows more, the JSON document all
LARGE_PERCENT = 1e4
CAPTION = (
    "{confidence:.0%} intervals over interleaved fresh starts; saves: (1 - time / other time) * 100; "
    "overhead: (time / other time - 1) * 100"
)


def text(document: ExperimentDocument) -> str:
    """Each claim with its verdict, the reason, and the decisive comparisons in columns."""
    shown = [
        (row, [[one.what, *cells(one)] for one in row.comparisons[:MAX_COMPARISONS]]) for row in document.statements
    ]
    widths = [max((len(line[column]) for _, lines in shown for line in lines), default=0) for column in range(3)]
    parts = [document.title]
    for row, lines in shown:
        said = [heading(row), f"  {row.reason}"]
        for what, percent, interval in lines:
            said.append(f"    {what:<{widths[0]}}  {row.metric} {percent:>{widths[1]}}  {interval:>{widths[2]}}")
        more = len(row.comparisons) - len(lines)
        parts.append("\n".join([*said, *([f"    and {more} more"] if more else [])]))
    return "\n\n".join([*parts, caption(document)])


def heading(row: StatementRow) -> str:
    return f"{row.claim}: {row.verdict}"


def cells(comparison: StatementComparison) -> list[str]:
    """The percentage and its interval, which a single round does not give."""
    low, high = comparison.percent_low, comparison.percent_high
    interval = "-" if low is None or high is None else f"{signed(low)} to {signed(high)}"
    return [signed(comparison.percent), interval]


def signed(percent: float) -> str:
    """With one decimal, or two significant digits where large."""
    return f"{percent:+.1f}" if abs(percent) < LARGE_PERCENT else f"{percent:+.2g}"


def caption(document: ExperimentDocument) -> str:
    return CAPTION.format(confidence=document.confidence)


def table(document: ExperimentDocument) -> TableModel:
    """A group for each claim."""
    return TableModel(
        title="Claims and findings",
        columns=["", "", "percent", "interval"],
        groups={
            f"{heading(row)} ({row.reason})": [
                [one.what, row.metric, *cells(one)] for one in row.comparisons[:MAX_COMPARISONS]
            ]
            for row in document.statements
        },
        caption=[caption(document)],
    )
