"""What a study of collectives leaves: tune-collectives.json."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from hvscale.comm_tuning.collectives.decide.cost_model import Fit, fit
from hvscale.comm_tuning.collectives.decide.decide import Decision, decide
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, Choice, Measurements
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.core.run_folder import Host
from hvscale.launch.options import LaunchOptions
from hvscale.studies.folder import State


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


class TuneCollectives(BaseModel):
    """What `hvscale tune-collectives --json` prints, by alias, and the folder's tune-collectives.json.

    `nps`: the numbers of ranks that are measured; `sizes`: bytes, before any are added near crossovers; `library`: as it names itself; `link`:
    bits per second of each node's, where it is known. `decision` and `fits` are None and empty while nothing can be decided.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_: Annotated[Literal["hvscale/tune-collectives/2"], Field(alias="schema")] = "hvscale/tune-collectives/2"
    state: State = "running"
    folder: str
    mpi: str
    library: str = ""
    np: int
    nps: list[int]
    operations: list[Operation]
    sizes: dict[Operation, list[int]]
    eager_limits: list[int | None]
    launch: LaunchOptions
    link: float | None = None
    host: Host | None = None
    jobs: list[Job] = []
    measurements: Measurements
    decision: Decision | None = None
    fits: list[Fit] = []
    warnings: list[str] = []

    def tabulate(self) -> None:
        """Decide over what has been measured so far."""
        points = self.measurements.points
        self.fits = list(fit(points).values())
        known = any(point.choice == LIBRARY and point.eager_limit_bytes is None and not point.wrong for point in points)
        self.decision = decide(self.measurements) if known else None
