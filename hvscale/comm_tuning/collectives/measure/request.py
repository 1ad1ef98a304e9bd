"""What one start of ranks is to measure, written into its run folder before it; and the lines in which rank 0 answers."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from hvscale.comm_tuning.collectives.decide.measurements import Choice, Point
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.core.documents import VersionedDocument

DTYPE = "float32"  # of what is sent: Horovod's gradients


class Candidate(BaseModel):
    """A choice, and what the library is told for it: environment variables, which stand for its control variables."""

    choice: Choice
    variables: dict[str, str] = {}


class Request(VersionedDocument):
    """collectives-request.json. `sizes`: bytes, ascending; `refine`: add some between them; `known`: what has been measured already.

    `seconds`: how long it may take, None for no bound; `exhaustive`: measure all candidates at all sizes equally often; `only`: by size, where not
    all are to be measured.
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
    only: dict[int, list[Choice]] = {}


class Begun(BaseModel):
    """The first line: whose library does it, and the most ranks on one node. `refused`: choices that it does not know."""

    kind: Literal["begun"] = "begun"
    library: str
    ranks_per_node: int
    refused: list[Choice]


class Trying(BaseModel):
    """A choice is called for the first time at a size: what a failure is to be blamed on."""

    kind: Literal["trying"] = "trying"
    bytes: int
    choice: Choice


class Sample(BaseModel):
    """What a call took the slowest rank. `choices`: all that are the same at this size."""

    kind: Literal["sample"] = "sample"
    bytes: int
    choices: list[Choice]
    seconds: float


class Checked(BaseModel):
    """How many elements were wrong, over all ranks."""

    kind: Literal["checked"] = "checked"
    bytes: int
    choices: list[Choice]
    wrong: int


class Impossible(BaseModel):
    """A request that cannot be met on the nodes; nothing was measured."""

    kind: Literal["impossible"] = "impossible"
    why: str


class Ended(BaseModel):
    """The last line. `finished`: nothing is left to measure; else the time was over."""

    kind: Literal["ended"] = "ended"
    finished: bool


Answer = Begun | Trying | Sample | Checked | Impossible | Ended


class Line(BaseModel):
    """One line of collectives.jsonl."""

    line: Annotated[Answer, Field(discriminator="kind")]


def request_path(run: Path) -> Path:
    return run / "collectives-request.json"


def answers_path(run: Path) -> Path:
    return run / "collectives.jsonl"
