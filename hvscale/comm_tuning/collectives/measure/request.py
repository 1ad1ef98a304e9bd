"""What one start of ranks is to measure, and the lines in which rank 0 reports what it has
measured.

The controller writes the request into the run folder before the start.
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
    """A choice, and the environment variables that name the control variables and values that set
    it in the library.
    """

    choice: AlgorithmChoice
    variables: dict[str, str] = {}


class CollectivesRequest(VersionedDocument):
    """collectives-request.json.

    `sizes`: bytes, ascending. `refine`: add sizes near crossovers. `known`: earlier measurements of
    this job. `seconds`: time limit, None for no limit. `exhaustive`: measure all candidates at all
    sizes equally often. `only`: the choices to measure by size, where not all are to be measured.
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
    """The first line: the library's name for itself, the most ranks on one node, and the choices
    that the library rejects.
    """

    kind: Literal["started"] = "started"
    library: str
    ranks_per_node: int
    rejected: list[AlgorithmChoice]


class Trying(BaseModel):
    """A choice is about to be called for the first time at a size: if the job fails now, this
    choice is to blame.
    """

    kind: Literal["trying"] = "trying"
    bytes: int
    choice: AlgorithmChoice


class Sample(BaseModel):
    """The seconds of one call on the slowest rank. `choices`: all choices that are the same at this
    size.
    """

    kind: Literal["sample"] = "sample"
    bytes: int
    choices: list[AlgorithmChoice]
    seconds: float


class Checked(BaseModel):
    """The number of wrong elements, summed over all ranks."""

    kind: Literal["checked"] = "checked"
    bytes: int
    choices: list[AlgorithmChoice]
    wrong: int


class TuningEnded(BaseModel):
    """The last line. `finished`: nothing is left to measure; otherwise the time was up."""

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
