"""Averages gradients over the ranks as bf16, which Horovod 0.28 cannot add.

It has two phases, like a ring all-reduce. Each rank receives all ranks' values of its own share
(all-to-all) and adds them in fp32. Then all ranks receive all shares (all-gather). Each phase moves
(n - 1) / n of the gradients as bf16: half the bytes of fp32.
"""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

BUCKET_BYTES = 16 << 20  # of fp32 gradients; full buckets are sent during the backward pass
# The type that Horovod transfers; each element holds two bf16 values.
CARRIER = torch.int32


@dataclass
class Bucket:
    """Consecutive parameters, in the order in which their gradients become ready.

    `values` holds their gradients as bf16, padded with zeros to a multiple of the ranks. `parts`
    are views of it, one for each parameter.
    """

    number: int
    parameters: list[nn.Parameter]
    values: Tensor
    handle: Any = None
    parts: list[Tensor] = field(init=False)
    missing: int = field(init=False)

    def __post_init__(self) -> None:
        sizes = [parameter.numel() for parameter in self.parameters]
        self.parts = list(torch.split(self.values[: sum(sizes)], sizes))
        self.missing = len(self.parameters)


class Bf16Allreduce:
    """Starts the exchange in gradient hooks during the last of `passes` backward passes."""

    def __init__(self, hvd: ModuleType, parameters: list[nn.Parameter], passes: int) -> None:
        self.hvd, self.passes, self.ranks = hvd, passes, hvd.size()
        self.buckets: list[Bucket] = []
        self.where: dict[nn.Parameter, tuple[Bucket, Tensor]] = {}
        self.seen: dict[nn.Parameter, int] = {}
        for found in in_buckets(parameters[::-1]):
            length = sum(parameter.numel() for parameter in found)
            values = torch.zeros(length + -length % (2 * self.ranks), dtype=torch.bfloat16, device=found[0].device)
            bucket = Bucket(len(self.buckets), found, values)
            self.buckets.append(bucket)
            self.where.update((one, (bucket, part)) for one, part in zip(found, bucket.parts, strict=True))
        for parameter in parameters:
            self.seen[parameter] = 0
            parameter.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """Wait for all exchanges and set every parameter's gradient to the average. Collective."""
        gathered = []
        for bucket in self.buckets:
            if bucket.handle is None:  # a parameter was unused: its gradient counts as zero on this rank
                for parameter, part in zip(bucket.parameters, bucket.parts, strict=True):
                    if self.seen[parameter] < self.passes:
                        part.zero_() if parameter.grad is None else part.view(parameter.shape).copy_(parameter.grad)
                self._send(bucket)
            of_ranks, _ = self.hvd.synchronize(bucket.handle)
            shares = of_ranks.view(torch.bfloat16).view(self.ranks, -1)
            average = (shares.sum(0, dtype=torch.float32) / self.ranks).bfloat16()
            name = f"hvscale.bf16.gather.{bucket.number}"
            gathered.append(self.hvd.allgather_async(average.view(CARRIER), name=name))
        for bucket, handle in zip(self.buckets, gathered, strict=True):
            bucket.values.copy_(self.hvd.synchronize(handle).view(torch.bfloat16))
            for parameter, part in zip(bucket.parameters, bucket.parts, strict=True):
                average = part.view(parameter.shape).to(parameter.dtype)
                parameter.grad = average if parameter.grad is None else parameter.grad.copy_(average)
                self.seen[parameter] = 0
            bucket.missing, bucket.handle = len(bucket.parameters), None

    def _ready(self, parameter: nn.Parameter) -> None:
        """Called during the backward pass when the parameter's gradient is ready."""
        self.seen[parameter] += 1
        if self.seen[parameter] == self.passes and parameter.grad is not None:
            bucket, part = self.where[parameter]
            part.view(parameter.shape).copy_(parameter.grad)
            bucket.missing -= 1
            if not bucket.missing:
                self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        name = f"hvscale.bf16.share.{bucket.number}"
        bucket.handle = self.hvd.alltoall_async(bucket.values.view(CARRIER), name=name)


def in_buckets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Split `parameters` into buckets of about BUCKET_BYTES."""
    buckets: list[list[nn.Parameter]] = [[]]
    size = 0
    for parameter in parameters:
        if size >= BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return buckets
