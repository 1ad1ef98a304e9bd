"""What a study of collectives leaves: tune-collectives.json."""

from typing import Literal

from pydantic import BaseModel

from hvscale.comm_tuning.collectives.decide.cost_model import Fit, fit
from hvscale.comm_tuning.collectives.decide.decide import Decision, decide
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, Choice, Measurements
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import StudyDocument


class Job(BaseModel):
    """One start of ranks, which measured all choices on `np` ranks under one eager limit (None: the library's own).

    `again`: it measured anew, at each size, what had been taken for the best, and the library's own.
    `finished`: nothing is left to measure in it; else it ended with its time, or was broken off, and is gone on with. `problem`: why it failed;
    `excluded`: choices in which ranks failed.
    """

    np: int
    operation: Operation
    eager_limit_bytes: int | None
    run: str
    again: bool = False
    seconds: float = 0.0
    finished: bool = False
    problem: str | None = None
    excluded: list[Choice] = []


class TuneCollectives(StudyDocument):
    """What `hvscale tune-collectives --json` prints, by alias, and the folder's tune-collectives.json.

    `nps`: the numbers of ranks that are measured; `sizes`: bytes, before any are added near crossovers; `library`: as it names itself; `link`:
    bits per second of each node's, where it is known. `decision` and `fits` are None and empty while nothing can be decided.
    """

    schema_: Literal["hvscale/tune-collectives/2"] = "hvscale/tune-collectives/2"
    mpi: str
    library: str = ""
    np: int
    nps: list[int]
    operations: list[Operation]
    sizes: dict[Operation, list[int]]
    eager_limits: list[int | None]
    launch: LaunchOptions
    link: float | None = None
    jobs: list[Job] = []
    measurements: Measurements
    decision: Decision | None = None
    fits: list[Fit] = []

    def tabulate(self) -> None:
        """Decide over what has been measured so far."""
        points = self.measurements.points
        self.fits = list(fit(points).values())
        known = any(point.choice == LIBRARY and point.eager_limit_bytes is None and not point.wrong for point in points)
        self.decision = decide(self.measurements) if known else None
