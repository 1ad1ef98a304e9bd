"""bench-experiment.json: the measurements of an experiment and the findings on its claims."""

from typing import Literal

from pydantic import BaseModel

from hvscale.bench.experiments.statements import Finding, StatementComparison
from hvscale.core.statistics import CONFIDENCE
from hvscale.studies.document import StudyDocument


class MeasurementRecord(BaseModel):
    """One measurement. `folder`: contains its document and page. `problem`: why it is
    incomplete.
    """

    name: str
    measure: str
    folder: str
    state: Literal["waiting", "running", "finished", "failed", "interrupted"] = "waiting"
    problem: str | None = None


class StatementRow(Finding):
    """A claim of the study and its finding. `metric`: the meaning of the percentages."""

    claim: str
    kind: str
    metric: str


class StatementComparisonRow(StatementComparison):
    """A row of the CSV file."""

    claim: str
    verdict: str
    metric: str


class ExperimentDocument(StudyDocument):
    """The document that `hvscale bench experiment --json` prints and writes to
    bench-experiment.json.

    `collectives`: the text of the decision table, or None.
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
