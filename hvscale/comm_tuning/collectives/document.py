"""tune-collectives.json: the document of a study of collectives."""

from typing import Literal

from pydantic import BaseModel

from hvscale.comm_tuning.collectives.decide.cost_model import Fit, fit
from hvscale.comm_tuning.collectives.decide.decide import Decision, decide
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, AlgorithmChoice, Measurements
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import StudyDocument


class TuningJob(BaseModel):
    """One job: the choices of one collective on `np` ranks under one eager limit (None: the
    library's own).

    `run`: its latest run folder. `confirmation`: the job repeats, at each size, the chosen choice
    and the library's own in a fresh start. `finished`: nothing is left to measure; otherwise the
    job ran out of time or was interrupted, and is resumed. `problem`: why it failed. `excluded`:
    choices whose ranks failed.
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
    """What `hvscale tune-collectives --json` prints, by alias, and the folder's
    tune-collectives.json.

    `nps`: the numbers of ranks that are measured. `sizes`: bytes, without the sizes added near
    crossovers. `library`: the library's name for itself. `link_bits_per_second`: of each node's
    link, None where unknown. `decision` is None and `fits` empty until something can be decided.
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
        """Decide on the measurements so far."""
        points = self.measurements.points
        self.fits = list(fit(points).values())
        known = any(point.choice == LIBRARY and point.eager_limit_bytes is None and not point.wrong for point in points)
        self.decision = decide(self.measurements) if known else None
