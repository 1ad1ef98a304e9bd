"""One rank: trains a model whose gradients take milliseconds each, and times them itself.

Usage: python -m ...rank_side.gradients cuda|cpu STEPS. The result holds, for each step, when the
device had computed each gradient, in seconds after the end of the optimizer's step before.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import horovod.torch as hvd
import torch
from torch import Tensor, nn

from hvscale.bench.gpu_check.rank_side.results import own_device, write_result

LAYERS = 6
WEIGHTS = 1 << 18  # of a layer
SIDE = {"cuda": 4096, "cpu": 256}  # of the matrices whose products keep the device busy
PRODUCTS = 2


class Clock:
    """Notes moments of the device, in the order of its work."""

    def __init__(self, device: Any) -> None:
        self.device, self.side = device, SIDE[device.type]
        self.matrix = torch.rand(self.side, self.side, device=device)
        self.product = torch.empty_like(self.matrix)
        self.moments: list[Any] = []

    def note(self) -> None:
        if self.device.type == "cpu":
            self.moments.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self.moments.append(event)

    def compute(self) -> None:
        for _ in range(PRODUCTS):
            torch.mm(self.matrix, self.matrix, out=self.product)

    def seconds(self) -> list[float]:
        """The seconds from the first moment to each later one, which have all come."""
        first, *later = self.moments
        if self.device.type == "cpu":
            return [moment - first for moment in later]
        return [1e-3 * float(first.elapsed_time(moment)) for moment in later]


class SlowGradient(torch.autograd.Function):
    """Adds a layer's mean weight; its backward pass takes as long as PRODUCTS matrix products."""

    @staticmethod
    def forward(context: Any, values: Tensor, weight: Tensor, clock: Clock) -> Tensor:
        context.clock, context.shape = clock, weight.shape
        return values + weight.mean()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        context.clock.compute()
        weights = torch.full(context.shape, 1.0 / context.shape[0], device=gradient.device) * gradient.sum()
        context.clock.note()
        return gradient, weights, None


class Layers(nn.Module):
    """A chain of SlowGradient."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(WEIGHTS)) for _ in range(LAYERS)])

    def forward(self, values: Tensor) -> Tensor:
        for weight in self.weights:
            values = SlowGradient.apply(values, weight, self.clock)
        return values


def train(model: nn.Module, clock: Clock, steps: int) -> Sequence[list[float]]:
    """The moments of each step but the first, whose start has none."""
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3), named_parameters=model.named_parameters()
    )
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, device=clock.device)).sum().backward()
        last = clock.moments
        clock.moments = []
        optimizer.step()
        clock.note()
        found.append(last)
    timed = []
    for moments in found[1:]:
        clock.moments = moments
        timed.append(clock.seconds())
    return timed


def main() -> None:
    kind, steps = sys.argv[1], int(sys.argv[2])
    hvd.init()
    torch.set_num_threads(1)
    device = own_device(kind, hvd.local_rank())
    clock = Clock(device)
    model = Layers(clock).to(device)
    seconds = train(model, clock, steps)
    write_result(hvd.rank(), {"seconds": seconds})
    hvd.shutdown()


if __name__ == "__main__":
    main()
