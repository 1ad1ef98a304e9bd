"""A comparison as a command shows it: a row for each variant, in a table and on a page."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple

from hvscale.core.statistics import Estimate
from hvscale.core.units import human_interval, human_number, signed_percent, signed_percent_interval
from hvscale.report.tables import TableModel
from hvscale.studies.comparison.study import ComparisonDocument


class SummaryRow(NamedTuple):
    """A variant's results.

    `change_percent`, `verdict`: against the baseline, None for the baseline itself.
    """

    name: str
    runs: int
    measured: Estimate | None
    change_percent: Estimate | None
    verdict: str | None


class SummaryDocument(ComparisonDocument):
    """A comparison that has a table and a page of its own."""

    variant: ClassVar[str]
    """What is compared, as the heading of its names: settings, placement."""
    change: ClassVar[str]
    """The word for a change against the baseline: gain, overhead."""

    @abstractmethod
    def summary(self) -> list[SummaryRow]:
        """A row for each variant with a finished run, the baseline first."""

    @abstractmethod
    def change_note(self) -> str:
        """How the change is computed."""

    def sentences(self) -> list[str]:
        """What the profiles show."""
        return []

    def details(self) -> list[TableModel]:
        """Further tables of the page: what the variants are."""
        return []


def summary_table(document: SummaryDocument) -> TableModel:
    """A row for each variant: its throughput or seconds, and its change against the baseline."""
    by_seconds = document.measured_by == "seconds"
    return TableModel(
        title=f"{Path(document.folder).name}: np {document.np}",
        columns=[
            *(document.variant, "runs", document.unit or "throughput", "interval"),
            *(f"{document.change} %", "interval", ""),
        ],
        groups={"": [_cells(row) for row in document.summary()]},
        caption=[
            "seconds: from the last rank's start to the last rank's end" if by_seconds else "throughput: of all ranks",
            document.change_note(),
            f"intervals: {document.confidence:.0%}, over fresh starts",
        ],
    )


def _cells(row: SummaryRow) -> list[str]:
    change = interval = ""
    if row.change_percent is not None:
        change = signed_percent(row.change_percent.mean)
        interval = signed_percent_interval(row.change_percent.low, row.change_percent.high)
    return [
        row.name,
        str(row.runs),
        human_number(row.measured.mean if row.measured is not None else None, 4),
        human_interval(row.measured.low, row.measured.high, 4) if row.measured is not None else "-",
        change,
        interval,
        "unknown: one round" if row.verdict == "unknown" else row.verdict or "",
    ]
