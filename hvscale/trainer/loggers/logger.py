"""What a logger is, and the registry of all loggers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from hvscale.core.registry import Registry
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.explanation import ExplainedBreakdown
from hvscale.trainer.config import TrainConfig

Metrics = dict[str, float]
FINISH_SECONDS = 120.0  # for sending what is left when training has ended


class LoggedRun(BaseModel):
    """A training run, as its loggers are told about it at the start."""

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
    """How training ended. Everything but `step` is empty if it did not finish."""

    finished: bool
    step: int
    """The last step."""
    metrics: Metrics
    """Of the whole run, if known: throughput, PSNR, exposed communication ..."""
    picture: Path | None
    """LR, bicubic, model and HR side by side."""
    breakdown: ExplainedBreakdown | None
    """The table by message size, if communication was recorded."""


class Logger(Protocol):
    """Runs in a process of its own. An exception ends the logger with one warning, never
    training.
    """

    name: str
    """Also its option of `hvscale train`."""
    package: str
    """The distribution, and extra of hvscale, that it needs."""

    def __init__(self, logged: LoggedRun, warn: Callable[[str], None]) -> None: ...

    @staticmethod
    def requested(config: TrainConfig) -> bool: ...

    def step(self, number: int, metrics: Metrics) -> None:
        """Called for each step in turn, at most a second after it."""

    def end(self, result: FinalResult) -> None:
        """Called last. It may take FINISH_SECONDS."""


LOGGERS: Registry[type[Logger]] = Registry("logger", "hvscale.trainer.loggers.clients")
