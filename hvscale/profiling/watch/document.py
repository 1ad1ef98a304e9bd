"""What one look at a run shows."""

from typing import Literal

from pydantic import AwareDatetime, BaseModel

from hvscale.core.documents import VersionedDocument
from hvscale.core.run_folder import OPEN_STATES, RunState
from hvscale.profiling.analyze.waiting import LateRank


class WatchRow(BaseModel):
    """The messages of one operation with sizes in one bin, both limits inclusive.

    `total_calls`, `total_bytes` and `total_seconds` include every call since the start, summed over
    ranks. The other figures belong to the period of `Watch`. Rates and the share are means over the
    recorded ranks: `gigabytes_per_second` is what one rank sends in a second of the job, in 10^9
    bytes. Percentiles come from histograms. None: no call ended in the period.
    """

    operation: str
    bytes_min: int
    bytes_max: int | None
    total_calls: int
    total_bytes: int
    total_seconds: float
    calls_per_second: float
    gigabytes_per_second: float
    share_of_time: float
    mean_seconds: float | None = None
    p50_seconds: float | None = None
    p99_seconds: float | None = None
    algbw_gigabytes_per_second: float | None = None
    busbw_gigabytes_per_second: float | None = None


class StepsNow(BaseModel):
    """The newest steps: `counted` steps that took `seconds` together.

    They come from steps.jsonl, else from the step marks of the lowest rank. `step`: the number of
    the newest step, and `steps` the number of all that are planned. `step_seconds`: None if no step
    was marked in the period.
    """

    step: int
    steps: int | None = None
    counted: int
    seconds: float
    step_seconds: float | None
    images_per_second: float | None = None
    loss: float | None = None


class ExposedNow(BaseModel):
    """Exposed communication as a share of the newest `steps` steps; it lies between the bounds.

    `basis`: `measured` by the program (steps.jsonl), bounded by the `calls` of the lowest rank that
    marks steps, bounded by `counters` over all steps of all ranks so far, or without steps, at most
    the mean share of `time` that ranks spend in collectives.
    """

    basis: Literal["measured", "calls", "counters", "time"]
    steps: int
    step_seconds: float | None = None
    share_at_least: float
    share_at_most: float


class LateNow(BaseModel):
    """Who arrived last in the newest `matched` collectives, which span `seconds`.

    `late_ranks` is sorted by the waiting that each rank caused. It leaves out ranks without a
    profile.
    """

    matched: int
    seconds: float
    waiting_share: float  # of the ranks' time in these collectives
    clock_error_seconds: float | None
    late_ranks: list[LateRank]


class LogLine(BaseModel):
    """A line of output. `ranks`: those that wrote it; empty for the launcher's."""

    ranks: list[int]
    text: str


class Watch(VersionedDocument):
    """The document that `hvscale watch --once --json` prints.

    The figures of the rows belong to the last `period_seconds`. `period` is `run` in the first
    sample and for a run that has ended: they are means since the start.
    """

    schema_: Literal["hvscale/watch/1"] = "hvscale/watch/1"
    run: str
    state: RunState
    command: list[str]
    np: int
    library: str
    started_at: AwareDatetime
    taken_at: AwareDatetime
    elapsed_seconds: float
    period: Literal["interval", "run"]
    period_seconds: float
    ranks_recorded: int
    ranks_missing: list[int]
    seconds_without_calls: float | None  # since a recorded rank last completed a call; None: not recorded
    rows: list[WatchRow]
    point_to_point: list[WatchRow]
    share_of_time: float | None  # that ranks spend in collectives; None: not recorded
    steps: StepsNow | None
    exposed_communication: ExposedNow | None
    late_ranks: LateNow | None
    unavailable: dict[str, str]  # by the name of the part that is null: the reason
    log_warnings: list[LogLine]
    log_lines: list[LogLine]
    warnings: list[str]

    @property
    def has_ended(self) -> bool:
        return self.state not in OPEN_STATES
