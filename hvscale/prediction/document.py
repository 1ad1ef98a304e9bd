"""What `hvscale predict --json` prints: how a job scales, by number of ranks."""

from typing import Literal

from pydantic import BaseModel

from hvscale.core.documents import VersionedDocument
from hvscale.studies.document import ResultSource

CONFIDENCE = 0.9  # of all intervals


class Loss(BaseModel):
    """Where the time of a step goes that a single rank would not need: means in seconds.

    The parts add up to the step's time without the computation of the average rank.
    """

    agreement_seconds: float
    """Ranks agree on which tensors are ready on all of them, and on the cycle's end."""
    slowest_rank_seconds: float
    """A rank waits for the slowest rank's computation."""
    wire_seconds: float
    """Messages that no computation hides."""
    copies_seconds: float
    """Tensors are copied into the fusion buffer and out of it, and nothing hides it."""
    slowed_computing_seconds: float = 0.0
    """The average rank computes longer while messages move."""


class MessageSizes(BaseModel):
    """Fused messages of one range of sizes, in a step."""

    bytes_min: int
    bytes_max: int | None
    calls: float
    bytes: float


class PredictedRow(BaseModel):
    """One number of ranks. Intervals cover `CONFIDENCE`; None where there is none.

    `extrapolation`: np over the largest measured np, at least 1. `speed_up` and
    `scaling_efficiency` compare with the step of a rank alone that never waits.
    `images_per_second`: of all ranks together.
    """

    np: int
    source: ResultSource
    extrapolation: float = 1.0
    step_seconds: float
    step_seconds_low: float | None = None
    step_seconds_high: float | None = None
    speed_up: float
    scaling_efficiency: float
    scaling_efficiency_low: float | None = None
    scaling_efficiency_high: float | None = None
    exposed_seconds: float
    exposed_seconds_low: float | None = None
    exposed_seconds_high: float | None = None
    images_per_second: float | None = None
    images_per_second_low: float | None = None
    images_per_second_high: float | None = None
    loss: Loss | None = None
    messages: list[MessageSizes] = []


class PredictionCheck(BaseModel):
    """A measured number of ranks, predicted from the runs on other numbers of ranks."""

    np: int
    step_seconds: float
    predicted_seconds: float
    error_percent: float


class TimedMessage(BaseModel):
    """A fused message in the timeline of a step, whose start is 0.

    `tensors`: 0 if their number is unknown.
    """

    start_seconds: float
    end_seconds: float
    bytes: int
    tensors: int


class StepTimeline(BaseModel):
    """One step, from the last result of the step before.

    `ready_seconds`: when the slowest rank enqueues each tensor, ascending; empty if unknown.
    `agreement_seconds`: start and end of each agreement that a message follows.
    """

    np: int
    source: ResultSource
    step_seconds: float
    ready_seconds: list[float]
    messages: list[TimedMessage]
    agreement_seconds: list[tuple[float, float]] = []


class PredictionDocument(VersionedDocument):
    """The prediction for one job under one set of settings and one network."""

    schema_: Literal["hvscale/predict/1"] = "hvscale/predict/1"
    command: list[str] = []
    """The command line that repeats the prediction."""
    runs: list[str]
    """The recordings."""
    measured_np: list[int]
    """The numbers of ranks whose messages say what messages cost."""
    settings: dict[str, str] = {}
    """Knobs that the prediction assumes, by name."""
    network: str
    """Where the times of messages come from, in words."""
    compute_seconds: float
    """The step of a rank alone that never waits: the mean over ranks and steps."""
    lost_speed: float | None = None
    """What share of its speed computing loses while a message moves; None if not measured."""
    gradient_bytes: int
    confidence: float = CONFIDENCE
    warnings: list[str] = []
    rows: list[PredictedRow] = []
    """One for each np, smallest first: measured where it was measured."""
    predicted_beside: list[PredictedRow] = []
    """What the model predicts for the np whose rows are measured or replayed."""
    checks: list[PredictionCheck] = []
    explained: str | None = None
    """Whether communication explains the measured curve, in a sentence; None without one."""
    timelines: list[StepTimeline] = []
    """A recorded step beside a predicted one, of the same number of ranks."""
