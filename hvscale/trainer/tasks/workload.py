"""What the trainer needs to know about a task: its data, its loss, and how its model is
evaluated.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hvscale import models
from hvscale.core.run_folder import RunFolder
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks


class Workload(Protocol):
    """A batch is this rank's part of a step, or of one of its --batches-per-allreduce; counted from
    0.
    """

    title: str
    """Name of the model in the first line of a run."""
    steps_per_epoch: int
    learning_rate: float
    """The default."""
    optimizer: str
    """The default: adam or sgd."""
    needs_prefetch: bool
    """Making a batch takes long enough to use threads for it."""
    loss_decimals: int
    """For people."""
    model_options: dict[str, Any]
    """Keyword arguments that the model is built with."""

    def build_model(self) -> nn.Module:
        """Raises RequestError for an option the model does not have, or weights that do not fit
        it.
        """
        ...

    def load_batch(self, batch: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, on the CPU. Called by several threads at once."""
        ...

    def to_device(self, loaded: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets on `device`, as the model and the loss take them."""
        ...

    def data_position(self, batch: int) -> dict[str, int]:
        """The data used before a batch; empty if each batch is sampled anew."""
        ...

    def resume_at(self, batch: int, position: dict[str, int]) -> int:
        """Let `batch` be the first one after `position`.

        Returns the number it would have if np had always been the present one.
        """
        ...

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """Of the model's output, in fp32."""
        ...

    def evaluate(self, model: nn.Module, run: RunFolder) -> dict[str, Any]:
        """Fields of TrainResult. Collective. Raises RequestError, on all ranks, if a file cannot be
        read or written.
        """
        ...


def make_workload(config: TrainConfig, ranks: Ranks) -> Workload:
    """Raises RequestError, on all ranks, for an unknown model or unusable data. Collective."""
    task = ranks.all_or_fail(lambda: models.find(config.model)).task
    if task == "super-resolution":
        from hvscale.trainer.tasks.super_resolution import SuperResolution

        return SuperResolution(config, ranks)
    from hvscale.trainer.tasks.classification import Classification

    return Classification(config, ranks)
