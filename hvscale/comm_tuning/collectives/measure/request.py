"""The measurement request for one start of ranks, and the reports that rank 0 writes.

The controller writes the request into the run folder before it starts the ranks.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from hvscale.bench.collectives.request import Refused
from hvscale.comm_tuning.collectives.decide.measurements import AlgorithmChoice, Point
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.core.documents import VersionedDocument

DTYPE = "float32"  # the type of Horovod's gradients


class Candidate(BaseModel):
    """A choice, and the environment variables that select it in the library.

    The ranks set the control variables with these names, not the environment.
    """

    choice: AlgorithmChoice
    variables: dict[str, str] = {}


class CollectivesRequest(VersionedDocument):
    """collectives-request.json.

    `sizes`: bytes, ascending. `refine`: add sizes near crossovers. `known`: earlier measurements of
    this job. `seconds`: time limit, None for no limit. `exhaustive`: measure all candidates equally
    often at all sizes. `only`: the choices to measure, by size; empty for all candidates.
    """

    schema_: Literal["hvscale/collectives-request/1"] = "hvscale/collectives-request/1"
    operation: Operation
    mpi: str
    sizes: list[int]
    candidates: list[Candidate]
    eager_limit_bytes: int | None = None
    refine: bool = True
    exhaustive: bool = False
    seconds: float | None = None
    known: list[Point] = []
    only: dict[int, list[AlgorithmChoice]] = {}


class TuningStarted(BaseModel):
    """The first line. `library`: the name that the library reports. `rejected`: choices that the
    library does not accept.
    """

    kind: Literal["started"] = "started"
    library: str
    ranks_per_node: int
    rejected: list[AlgorithmChoice]


class Trying(BaseModel):
    """A choice is called for the first time at a size. If the job fails now, this choice caused
    it.
    """

    kind: Literal["trying"] = "trying"
    bytes: int
    choice: AlgorithmChoice


class Sample(BaseModel):
    """The seconds of one call on the slowest rank. `choices`: all that are equivalent at this
    size.
    """

    kind: Literal["sample"] = "sample"
    bytes: int
    choices: list[AlgorithmChoice]
    seconds: float


class Checked(BaseModel):
    """The check of the result. `wrong`: the number of wrong elements, summed over all ranks."""

    kind: Literal["checked"] = "checked"
    bytes: int
    choices: list[AlgorithmChoice]
    wrong: int


class TuningEnded(BaseModel):
    """The last line. `finished`: everything was measured; False if the time limit was reached."""

    kind: Literal["ended"] = "ended"
    finished: bool


RankReport = TuningStarted | Trying | Sample | Checked | Refused | TuningEnded


class RankReportLine(BaseModel):
    """One line of collectives.jsonl."""

    line: Annotated[RankReport, Field(discriminator="kind")]


def request_path(run: Path) -> Path:
    return run / "collectives-request.json"


def reports_path(run: Path) -> Path:
    return run / "collectives.jsonl"
