"""The end of a training step: gradients of all ranks averaged, clipped and applied, or the step skipped where they are no numbers."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hvscale.trainer.agreement import Agreement
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks


@dataclass(frozen=True)
class Updated:
    communication_seconds: float | None
    """Waited for gradients after the backward pass had ended; None for a process alone."""
    stop: bool
    """A rank was asked to stop."""
    skipped: bool
    """The loss or the gradients were not finite: parameters, optimizer and buffers are as before the step."""


class Update:
    def __init__(self, config: TrainConfig, ranks: Ranks, model: nn.Module, optimizer: Any) -> None:
        self.optimizer, self.alone = optimizer, ranks.hvd is None
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Batch normalisation counts in its buffers what it sees, and would keep a NaN for ever.
        self.buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self.agreement = Agreement(ranks.hvd, self.parameters[0].dtype, 1.0)

    def before(self) -> None:
        """To be called before the forward pass."""
        self.optimizer.zero_grad()
        for buffer, kept in self.buffers:
            kept.copy_(buffer)

    def after(self, loss: Tensor, asked_to_stop: bool) -> Updated:
        """To be called after the backward pass of `loss`. Collective."""
        self.agreement.say(asked_to_stop, loss)
        waiting = time.perf_counter()
        if not self.alone:
            self.optimizer.synchronize()
        agreed = self.agreement.hear()
        communication = None if self.alone else time.perf_counter() - waiting
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        # Averaged gradients are the same on all ranks, and so is this.
        applied = agreed.finite and bool(torch.nn.utils.get_total_norm(gradients).isfinite())
        if applied:
            self._apply()
        else:
            for buffer, kept in self.buffers:
                buffer.copy_(kept)
        return Updated(communication, agreed.stop, not applied)

    def _apply(self) -> None:
        if self.alone:
            self.optimizer.step()
        else:
            with self.optimizer.skip_synchronize():
                self.optimizer.step()
