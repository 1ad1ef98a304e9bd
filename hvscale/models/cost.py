"""What a model costs: parameters, the bytes of gradients that ranks exchange, and arithmetic."""

from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    parameters: int
    """Trainable numbers; frozen ones, such as EDSR's mean shift, are not counted."""
    tensors: int
    """Trainable tensors: as many gradients a step are handed to Horovod."""
    gradient_bytes: int
    """Bytes of all gradients in the parameters' own type: what one step all-reduces."""
    forward_flops: int
    """Floating-point operations of one forward pass; a multiply-add counts as two."""


def cost(model: nn.Module, input_shape: tuple[int, ...]) -> Cost:
    """`input_shape` begins with the batch: (1, 3, 48, 48). The pass is run on fake tensors: shapes only, no arithmetic."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    device = next(model.parameters()).device
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(input_shape, device=device))
    return Cost(
        parameters=sum(p.numel() for p in trainable),
        tensors=len(trainable),
        gradient_bytes=sum(p.numel() * p.element_size() for p in trainable),
        forward_flops=counter.get_total_flops(),
    )
