"""The interface of a task for the trainer: its data, its loss and the evaluation of its model."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hvscale import models
from hvscale.core.run_folder import RunFolder
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks


class Workload(Protocol):
    """A task of the trainer. Batches of a rank are counted from 0.

    A step has --batches-per-allreduce batches.
    """

    title: str
    """Name of the model in the first log line."""
    steps_per_epoch: int
    learning_rate: float
    """The default learning rate."""
    optimizer: str
    """The default optimizer: adam or sgd."""
    needs_prefetch: bool
    """Loading a batch is slow enough to need threads."""
    loss_decimals: int
    """Decimal places of the loss in messages."""
    model_options: dict[str, Any]
    """Keyword arguments that the model is built with."""

    def build_model(self) -> nn.Module:
        """Raises RequestError for an unknown model option or weights that do not fit."""
        ...

    def load_batch(self, batch: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets on the CPU. Several threads call this at the same time."""
        ...

    def to_device(self, loaded: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets on `device`, as the model and the loss expect them."""
        ...

    def data_position(self, step: int) -> dict[str, int]:
        """The position in the data before a step; empty if batches are independent samples."""
        ...

    def resume_at(self, step: int, position: dict[str, int]) -> int:
        """Make `step` the first one after `position`.

        Returns the number that `step` would have if np had always been the same.
        """
        ...

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """The loss of the model's output, in fp32."""
        ...

    def evaluate(self, model: nn.Module, run: RunFolder) -> dict[str, Any]:
        """Evaluate the model; returns fields of TrainResult. Collective.

        Raises RequestError, on all ranks, if a file cannot be read or written.
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
