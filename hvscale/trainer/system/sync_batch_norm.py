"""Batch normalisation over the batches of all ranks.

Horovod's own implementation needs GPU tensors; this one uses its all-reduce and works on CPUs too.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class AverageOverRanks(torch.autograd.Function):
    """The mean over all ranks, whose gradient is the mean of the ranks' gradients.

    Horovod's own function numbers the messages of its backward pass, from 0 on a rank that joins an
    elastic job later, so that their names would differ between ranks.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, name: str, hvd: ModuleType) -> Tensor:
        ctx.name, ctx.hvd = name, hvd
        mean: Tensor = hvd.allreduce(values, name=name, op=hvd.Average)
        return mean

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.hvd.allreduce(gradient, name=f"{ctx.name}.backward", op=ctx.hvd.Average), None, None


class SyncBatchNorm(_BatchNorm):
    """Normalises with mean and variance over all ranks, whose batches must have equal sizes.

    Each layer adds one all-reduce to the forward pass and one to the backward pass.
    """

    def __init__(self, original: _BatchNorm, name: str, hvd: ModuleType) -> None:
        """Takes over the parameters and buffers of `original`, which is layer `name`."""
        super().__init__(
            original.num_features, original.eps, original.momentum, original.affine, original.track_running_stats
        )
        self.weight, self.bias = original.weight, original.bias
        self.running_mean, self.running_var = original.running_mean, original.running_var
        self.num_batches_tracked = original.num_batches_tracked
        self.name, self.hvd = name, hvd

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"{input.dim()} dimensions: batch normalisation needs a batch and channels")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (batch, channels, ...), computed in fp32."""
        if not self.training:
            return super().forward(input)
        axes = [0, *range(2, input.dim())]
        values = input.float()
        variance, mean = torch.var_mean(values, axes, correction=0)
        # In fp64, because the difference of squares below loses precision.
        own = torch.stack([mean.double(), variance.double() + mean.double().square()])
        mean, square = AverageOverRanks.apply(own, f"hvscale.norm.{self.name}", self.hvd)
        variance = square - mean.square()
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            count = values.numel() // values.shape[1] * self.hvd.size()
            self.num_batches_tracked.add_(1)
            share = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
            with torch.no_grad():
                self.running_mean.lerp_(mean.float(), share)
                self.running_var.lerp_((variance * (count / max(1, count - 1))).float(), share)
        shape = [1, -1, *[1] * (input.dim() - 2)]
        scale = (variance + self.eps).rsqrt().float()
        shift = -mean.float() * scale
        if self.affine:
            scale, shift = scale * self.weight, shift * self.weight + self.bias
        output: Tensor = values * scale.view(shape) + shift.view(shape)
        return output.to(input.dtype)


def synchronise_batch_norm(model: nn.Module, hvd: ModuleType | None) -> None:
    """Replace each batch-normalisation layer in place. Does nothing for a single process."""
    if hvd is None:
        return
    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(module, child_name, SyncBatchNorm(child, f"{name}.{child_name}".lstrip("."), hvd))
