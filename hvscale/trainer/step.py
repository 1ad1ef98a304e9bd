"""The end of a training step: averages gradients over the ranks, clips them, updates the model.

A step whose loss or gradients are not finite on any rank is skipped on all ranks.
"""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system.bf16_allreduce import Bf16Allreduce
from hvscale.trainer.system.precision import ComputeFormat

MAX_SKIPPED_IN_A_ROW = 3
LOWEST_LOSS_SCALE = 1.0  # if fp16 gradients overflow unscaled, the loss scale is not the cause


@dataclass(frozen=True)
class Consensus:
    """What all ranks agreed on; the same on all ranks."""

    interrupt: bool
    """A rank asks all ranks to stop, or to execute a command, after this step."""
    finite: bool
    """The loss is finite on all ranks."""
    regroup: bool
    """Hosts were added or removed (elastic job)."""


class StepConsensus:
    """Shares flags of any rank with all ranks, without an additional message.

    Two numbers per step (three in an elastic job) are all-reduced right after the gradients and in
    the same way, so that Horovod fuses them into the same message.
    """

    def __init__(self, hvd: ModuleType | None, dtype: torch.dtype, predivide_factor: float) -> None:
        """`dtype` and `predivide_factor` are those of the gradient exchange."""
        self.hvd, self.dtype = hvd, dtype
        self.factors = {"prescale_factor": 1 / predivide_factor, "postscale_factor": predivide_factor}
        self.posted: Any = None

    def post(self, interrupt: bool, loss: Tensor, regroup: bool | None = None) -> None:
        """Start the exchange, on every rank, after the backward pass.

        `regroup` is None unless the job is elastic.
        """
        requests = torch.tensor([float(flag) for flag in (interrupt, regroup) if flag is not None], device=loss.device)
        flags = torch.cat([(~loss.detach().isfinite()).float().view(1), requests]).to(self.dtype)
        if self.hvd is None:
            self.posted = flags
        else:
            self.posted = self.hvd.allreduce_async_(
                flags, name="hvscale.consensus", op=self.hvd.Average, **self.factors
            )

    def wait(self) -> Consensus:
        """Finish the exchange. Collective."""
        flags = self.posted if self.hvd is None else self.hvd.synchronize(self.posted)
        not_finite, interrupt, *regroup = flags.tolist()
        return Consensus(interrupt > 0, not not_finite, any(regroup))


@dataclass(frozen=True)
class UpdateResult:
    """The outcome of a step's gradient exchange and update."""

    communication_seconds: float | None
    """Time spent waiting for gradients after the backward pass; None for a single process."""
    interrupt: bool
    """See `Consensus`."""
    regroup: bool
    """See `Consensus`."""
    skipped: bool
    """Parameters, optimizer and buffers are unchanged: the loss or a gradient was not finite."""
    overflowed: bool
    """Skipped only because the fp16 loss scale was too high, which is normal now and then."""


class StepUpdate:
    """Turns the gradients of the ranks' batches into one model update.

    Training fails after `max_skipped` skipped steps in a row. With Adasum this is 1, because each
    rank has already applied its own update.
    """

    def __init__(
        self, config: TrainConfig, ranks: Ranks, model: nn.Module, optimizer: Any, compute_format: ComputeFormat
    ) -> None:
        self.optimizer, self.single = optimizer, ranks.hvd is None
        self.adasum = config.use_adasum and ranks.size > 1
        self.clip_norm = config.clip_norm
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Restored after a skipped step: batch normalisation's statistics would keep a NaN forever.
        self.buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self.bf16_allreduce = (
            Bf16Allreduce(ranks.hvd, self.parameters, config.batches_per_allreduce)
            if config.bf16_allreduce and ranks.hvd is not None
            else None
        )
        exchange_dtype = torch.float16 if config.fp16_allreduce else self.parameters[0].dtype
        self.consensus = StepConsensus(ranks.hvd, exchange_dtype, config.gradient_predivide_factor)
        device = self.parameters[0].device.type
        self.scaler = torch.amp.GradScaler(device, enabled=compute_format.precision == "fp16")
        self.max_skipped = 1 if self.adasum else MAX_SKIPPED_IN_A_ROW

    def begin(self) -> None:
        """Call before the first forward pass of a step."""
        self.optimizer.zero_grad()
        for buffer, saved in self.buffers:
            saved.copy_(buffer)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of one batch; `loss` is its share of the step's loss."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def finish(self, loss: Tensor, interrupt: bool, regroup: bool | None = None) -> UpdateResult:
        """Average and apply the gradients. `loss` is the step's mean loss. Collective."""
        self.consensus.post(interrupt, loss, regroup)
        wait_start = time.perf_counter()
        if self.adasum:
            self.optimizer.step()
        elif self.bf16_allreduce is not None:
            self.bf16_allreduce.finish()
        elif not self.single:
            self.optimizer.synchronize()
        agreed = self.consensus.wait()
        communication = None if self.single else time.perf_counter() - wait_start
        applied = (self.adasum or self._clip()) and agreed.finite
        if applied and not self.adasum:
            self._apply()
        if not applied:
            for buffer, saved in self.buffers:
                buffer.copy_(saved)
        overflowed = agreed.finite and not applied and self.scaler.get_scale() > LOWEST_LOSS_SCALE
        self.scaler.update()
        return UpdateResult(communication, agreed.interrupt, agreed.regroup, not applied, overflowed)

    def _clip(self) -> bool:
        """Clip the gradients; returns whether they are finite, which is the same on all ranks."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.clip_norm, norm)
        return bool(norm.isfinite())

    def _apply(self) -> None:
        synchronized = not self.single and self.bf16_allreduce is None
        with self.optimizer.skip_synchronize() if synchronized else nullcontext():
            self.scaler.step(self.optimizer)
