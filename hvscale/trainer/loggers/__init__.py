"""Where a training run can be watched. Each place is one file in this folder that registers itself; it runs in a process of its own (`follow`)."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel

from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.explanation import ExplainedBreakdown
from hvscale.trainer.config import TrainConfig

Figures = dict[str, float]
FINISH_SECONDS = 120.0  # for what has still to be sent when training has ended


class Watched(BaseModel):
    """A training run, as a watcher is told of it when it starts."""

    path: Path
    """Of the run folder."""
    config: TrainConfig
    np: int
    one_rank_images_per_second: float | None
    """Throughput of the same training on one rank, where it is known."""

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.path)


@dataclass(frozen=True)
class Outcome:
    """How training ended; all but `step` is empty where it did not come to its end."""

    finished: bool
    step: int
    """The last one made."""
    figures: Figures
    """Of the whole run: throughput, PSNR, exposed communication ... where they are known."""
    picture: Path | None
    """LR, bicubic, ours and HR side by side."""
    breakdown: ExplainedBreakdown | None
    """Where communication was recorded: its table by message size."""


class Watcher(Protocol):
    """Whatever it raises ends it with one warning, and does nothing to training."""

    name: str
    package: str
    """The distribution, and extra of hvscale, that it needs."""

    def __init__(self, watched: Watched, warn: Callable[[str], None]) -> None: ...

    @staticmethod
    def asked_for(config: TrainConfig) -> bool: ...

    def step(self, number: int, figures: Figures) -> None:
        """Called for each step in turn, a second after it at most."""

    def end(self, outcome: Outcome) -> None:
        """Called last. It has FINISH_SECONDS."""


WATCHERS: dict[str, type[Watcher]] = {}
Kind = TypeVar("Kind", bound=type[Watcher])


def register(kind: Kind) -> Kind:
    WATCHERS[kind.name] = kind
    return kind


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
