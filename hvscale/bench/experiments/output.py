"""A study's statements for people: in the terminal, and as the table of the page."""

from hvscale.bench.experiments.document import ExperimentDocument, StatementRow
from hvscale.bench.experiments.statements import Comparison
from hvscale.report.tables import TableModel

MOST = 4  # comparisons of a statement, those that decide; the page shows more, the JSON document all
LARGE = 1e4  # percent
CAPTION = (
    "{confidence:.0%} intervals over fresh starts in turns; saves: (1 - time / other time) * 100; "
    "overhead: (time / other time - 1) * 100"
)


def text(document: ExperimentDocument) -> str:
    """Each statement with what came of it, why, and the comparisons that decide, in columns."""
    shown = [(row, [[one.what, *cells(one)] for one in row.comparisons[:MOST]]) for row in document.statements]
    widths = [max((len(line[column]) for _, lines in shown for line in lines), default=0) for column in range(3)]
    parts = [document.title]
    for row, lines in shown:
        said = [heading(row), f"  {row.why}"]
        for what, percent, interval in lines:
            said.append(f"    {what:<{widths[0]}}  {row.figure} {percent:>{widths[1]}}  {interval:>{widths[2]}}")
        more = len(row.comparisons) - len(lines)
        parts.append("\n".join([*said, *([f"    and {more} more"] if more else [])]))
    return "\n\n".join([*parts, caption(document)])


def heading(row: StatementRow) -> str:
    return f"{row.says}: {row.verdict}"


def cells(comparison: Comparison) -> list[str]:
    """The percent and its interval; one round tells none."""
    low, high = comparison.percent_low, comparison.percent_high
    interval = "-" if low is None or high is None else f"{signed(low)} to {signed(high)}"
    return [signed(comparison.percent), interval]


def signed(percent: float) -> str:
    """With a digit behind the point, as long as that tells something."""
    return f"{percent:+.1f}" if abs(percent) < LARGE else f"{percent:+.2g}"


def caption(document: ExperimentDocument) -> str:
    return CAPTION.format(confidence=document.confidence)


def table(document: ExperimentDocument) -> TableModel:
    """A group for each statement."""
    return TableModel(
        title="What the study says, and what came of it",
        columns=["", "", "percent", "interval"],
        groups={
            f"{heading(row)} ({row.why})": [[one.what, row.figure, *cells(one)] for one in row.comparisons[:MOST]]
            for row in document.statements
        },
        caption=[caption(document)],
    )
