"""bench-experiment.json: the measurements of an experiment and the findings on its claims."""

from typing import Literal

from pydantic import BaseModel

from hvscale.bench.experiments.statements import Finding, StatementComparison
from hvscale.core.statistics import CONFIDENCE
from hvscale.studies.document import StudyDocument


class MeasurementRecord(BaseModel):
    """One measurement. `folder`: holds its own document and page. `problem`: why it is
    incomplete.
    """

    name: str
    measure: str
    folder: str
    state: Literal["waiting", "running", "finished", "failed", "interrupted"] = "waiting"
    problem: str | None = None


class StatementRow(Finding):
    """A claim of the study and the finding on it. `metric`: what the percentages of its comparisons
    mean.
    """

    claim: str
    kind: str
    metric: str


class StatementComparisonRow(StatementComparison):
    """A row of the CSV file."""

    claim: str
    verdict: str
    metric: str


class ExperimentDocument(StudyDocument):
    """What `hvscale bench experiment --json` prints, by alias, and bench-experiment.json in the
    experiment's folder.

    `collectives`: the decision table's text, None without one.
    """

    schema_: Literal["hvscale/bench-experiment/2"] = "hvscale/bench-experiment/2"
    title: str
    part: str
    collectives: str | None = None
    confidence: float = CONFIDENCE
    measurements: list[MeasurementRecord]
    statements: list[StatementRow] = []

    def comparisons(self) -> list[StatementComparisonRow]:
        return [
            StatementComparisonRow(**dict(comparison), claim=row.claim, verdict=row.verdict, metric=row.metric)
            for row in self.statements
            for comparison in row.comparisons
        ]
