"""The interface and the registry of loggers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import BaseModel

from hvscale.core.registry import Registry
from hvscale.core.run_folder import RunFolder
from hvscale.trainer.config import TrainConfig

if TYPE_CHECKING:
    from hvscale.profiling.analyze.explanation import ExplainedBreakdown

Metrics = dict[str, float]
FINISH_SECONDS = 120.0  # for sending the remaining data after training has ended


class LoggedRun(BaseModel):
    """The training run that loggers log, as known at its start."""

    path: Path
    """The run folder."""
    config: TrainConfig
    np: int
    one_rank_images_per_second: float | None
    """Throughput of the same training on one rank, if known."""

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.path)


@dataclass(frozen=True)
class FinalResult:
    """The end of training. All fields but `step` are empty if it did not finish."""

    finished: bool
    step: int
    """The last step."""
    metrics: Metrics
    """Metrics of the whole run, if known: throughput, PSNR, exposed communication ..."""
    picture: Path | None
    """LR, bicubic, model output and HR side by side."""
    breakdown: "ExplainedBreakdown | None"
    """The table by message size, if communication was recorded."""


class Logger(Protocol):
    """Runs in a separate process. An exception ends the logger with one warning, never training."""

    name: str
    """Also the name of its option of `hvscale train`."""
    package: str
    """The distribution it needs; also the name of hvscale's extra."""

    def __init__(self, logged: LoggedRun, warn: Callable[[str], None]) -> None: ...

    @staticmethod
    def requested(config: TrainConfig) -> bool: ...

    def step(self, number: int, metrics: Metrics) -> None:
        """Called for each step in order, at most a second after it."""

    def end(self, result: FinalResult) -> None:
        """Called last. It may take FINISH_SECONDS."""


LOGGERS: Registry[type[Logger]] = Registry("logger", "hvscale.trainer.loggers.clients")
