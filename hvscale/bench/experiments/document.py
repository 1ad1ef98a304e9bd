"""bench-experiment.json: what was measured, and what the study says of it."""

from typing import Literal

from pydantic import BaseModel

from hvscale.bench.experiments.statements import Comparison, Finding
from hvscale.core.statistics import CONFIDENCE
from hvscale.studies.document import StudyDocument


class MeasurementRecord(BaseModel):
    """One entry. `folder`: with its own document and page; `problem`: why it is not whole."""

    name: str
    measure: str
    folder: str
    state: Literal["waiting", "running", "finished", "failed", "interrupted"] = "waiting"
    problem: str | None = None


class StatementRow(Finding):
    """A statement of the study and what came of it; `figure`: what the percents of its comparisons are."""

    says: str
    kind: str
    figure: str


class ComparisonRow(Comparison):
    """A line of the CSV file."""

    says: str
    verdict: str
    figure: str


class ExperimentDocument(StudyDocument):
    """What `hvscale bench experiment --json` prints, by alias, and bench-experiment.json in the experiment's folder.

    `collectives`: the decision table's text, None without one.
    """

    schema_: Literal["hvscale/bench-experiment/1"] = "hvscale/bench-experiment/1"
    title: str
    part: str
    collectives: str | None = None
    confidence: float = CONFIDENCE
    measurements: list[MeasurementRecord]
    statements: list[StatementRow] = []

    def comparisons(self) -> list[ComparisonRow]:
        return [
            ComparisonRow(**dict(comparison), says=row.says, verdict=row.verdict, figure=row.figure)
            for row in self.statements
            for comparison in row.comparisons
        ]
