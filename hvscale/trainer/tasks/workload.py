"""What the training loop needs to know of the task: its data, its loss, and how its model is measured."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hvscale import models
from hvscale.core.run_folder import RunFolder
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks


class Workload(Protocol):
    title: str
    """Of the model, as the first line of a run names it."""
    steps_per_epoch: int
    learning_rate: float
    """The one used when none is asked for."""
    optimizer: str
    """Likewise: adam or sgd."""
    prepares_ahead: bool
    """Whether making a batch takes long enough for threads to do it."""
    decimals: int
    """Of the loss, as a person reads it."""

    model_options: dict[str, Any]
    """What the model is built with, by name."""

    def build(self) -> nn.Module:
        """Raises RequestError for an option that the model does not have, or weights that do not fit it."""
        ...

    def load(self, step: int) -> tuple[Tensor, Tensor]:
        """This rank's inputs and targets of a step, on the CPU; called by several threads at once."""
        ...

    def batch(self, loaded: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
        """The same on `device`, as the model and the loss take them."""
        ...

    def place(self, batch: int) -> dict[str, int]:
        """What of the data was used before a batch of this rank; empty where samples are drawn anew for each."""
        ...

    def go_on(self, batch: int, place: dict[str, int]) -> int:
        """Let `batch` be the first after `place`. Returns the batch it would be, had there been this number of ranks from the start."""
        ...

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """Of what the model gave, in fp32."""
        ...

    def measure(self, model: nn.Module, run: RunFolder) -> dict[str, Any]:
        """Fields of TrainResult. Collective. Raises RequestError, on all ranks, when a file cannot be read or written."""
        ...


def workload(config: TrainConfig, ranks: Ranks) -> Workload:
    """Raises RequestError, on all ranks, for a model that is not known, or data that cannot be used."""
    task = ranks.together(lambda: models.find(config.model)).task
    if task == "super-resolution":
        from hvscale.trainer.tasks.super_resolution import SuperResolution

        return SuperResolution(config, ranks)
    from hvscale.trainer.tasks.classification import Classification

    return Classification(config, ranks)
