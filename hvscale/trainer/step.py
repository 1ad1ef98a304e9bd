"""The end of a training step: gradients of all ranks averaged, clipped and applied, or the step skipped where they are no numbers."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hvscale.trainer.config import TrainConfig
from hvscale.trainer.consensus import Agreement
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system.bf16_averages import Bf16Averages
from hvscale.trainer.system.precision import Arithmetic

MOST_SKIPPED = 3
LOWEST_SCALE = 1.0  # where fp16 gradients are out of range as they are, scaling is not to blame


@dataclass(frozen=True)
class Updated:
    communication_seconds: float | None
    """Waited for gradients after the backward pass had ended; None for a process alone."""
    stop: bool
    """A rank was asked to stop."""
    regroup: bool
    """Hosts have come or gone, in an elastic job."""
    skipped: bool
    """The loss or the gradients were not finite: parameters, optimizer and buffers are as before the step."""
    overflowed: bool
    """It was only that gradients of fp16 had been scaled too far: usual at the start, and now and then."""


class Update:
    """`most_skipped`: as many steps skipped in a row end training. With Adasum the first, because each rank has made its update already."""

    def __init__(
        self, config: TrainConfig, ranks: Ranks, model: nn.Module, optimizer: Any, arithmetic: Arithmetic
    ) -> None:
        self.optimizer, self.alone = optimizer, ranks.hvd is None
        self.adasum = config.use_adasum and ranks.size > 1
        self.clip_norm = config.clip_norm
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Batch normalisation counts in its buffers what it sees, and would keep a NaN for ever.
        self.buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self.bf16_averages = (
            Bf16Averages(ranks.hvd, self.parameters, config.batches_per_allreduce)
            if config.bf16_allreduce and ranks.hvd is not None
            else None
        )
        sent_as = torch.float16 if config.fp16_allreduce else self.parameters[0].dtype
        self.agreement = Agreement(ranks.hvd, sent_as, config.gradient_predivide_factor)
        device = self.parameters[0].device.type
        self.scaler = torch.amp.GradScaler(device, enabled=arithmetic.precision == "fp16")
        self.most_skipped = 1 if self.adasum else MOST_SKIPPED

    def before(self) -> None:
        """To be called before the forward pass."""
        self.optimizer.zero_grad()
        for buffer, kept in self.buffers:
            kept.copy_(buffer)

    def backward(self, loss: Tensor) -> None:
        """Of one batch's share of the step's loss."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def after(self, loss: Tensor, asked_to_stop: bool, regroup: bool | None = None) -> Updated:
        """To be called after the backward passes, with the mean `loss` of their batches. Collective."""
        self.agreement.say(asked_to_stop, loss, regroup)
        waiting = time.perf_counter()
        if self.adasum:
            self.optimizer.step()
        elif self.bf16_averages is not None:
            self.bf16_averages.finish()
        elif not self.alone:
            self.optimizer.synchronize()
        agreed = self.agreement.hear()
        communication = None if self.alone else time.perf_counter() - waiting
        applied = (self.adasum or self._clip()) and agreed.finite
        if applied and not self.adasum:
            self._apply()
        if not applied:
            for buffer, kept in self.buffers:
                buffer.copy_(kept)
        overflowed = agreed.finite and not applied and self.scaler.get_scale() > LOWEST_SCALE
        self.scaler.update()
        return Updated(communication, agreed.stop, agreed.regroup, not applied, overflowed)

    def _clip(self) -> bool:
        """Whether the gradients are finite. They have been averaged, so it is the same on all ranks."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.clip_norm, norm)
        return bool(norm.isfinite())

    def _apply(self) -> None:
        horovods = not self.alone and self.bf16_averages is None
        with self.optimizer.skip_synchronize() if horovods else nullcontext():
            self.scaler.step(self.optimizer)
