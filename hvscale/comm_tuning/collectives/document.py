"""The document of a tuning study of collectives, tune-collectives.json."""

from typing import Literal

from pydantic import BaseModel

from hvscale.comm_tuning.collectives.decide.cost_model import Fit, fit
from hvscale.comm_tuning.collectives.decide.decide import Decision, decide
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, AlgorithmChoice, Measurements
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import StudyDocument


class TuningJob(BaseModel):
    """One job: it measures one collective on `np` ranks under one eager limit.

    `eager_limit_bytes`: None for the library's own. `run`: the latest run folder. `confirmation`:
    the job measures only the table's choices and the library's own again, in a fresh start.
    `finished`: everything was measured; if False, the job reached its time limit or was
    interrupted, and a later call resumes it. `problem`: why it failed. `excluded`: choices in which
    a rank failed.
    """

    np: int
    operation: Operation
    eager_limit_bytes: int | None
    run: str
    confirmation: bool = False
    seconds: float = 0.0
    finished: bool = False
    problem: str | None = None
    excluded: list[AlgorithmChoice] = []


class TuneCollectivesDocument(StudyDocument):
    """The document that `hvscale tune-collectives --json` prints and writes into the study folder.

    `nps`: the numbers of ranks to measure. `sizes`: bytes, without the sizes added near crossovers.
    `library`: the name that the library reports. `link_bits_per_second`: of each node's link, None
    if unknown. `decision`: None until the baseline has been measured.
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
    link_bits_per_second: float | None = None
    jobs: list[TuningJob] = []
    measurements: Measurements
    decision: Decision | None = None
    fits: list[Fit] = []

    def tabulate(self) -> None:
        """Update the fits and the decision from the measurements so far."""
        points = self.measurements.points
        self.fits = list(fit(points).values())
        has_baseline = any(
            point.choice == LIBRARY and point.eager_limit_bytes is None and not point.wrong for point in points
        )
        self.decision = decide(self.measurements) if has_baseline else None
