"""Which arithmetic and memory order this machine trains the model fastest with: measured once, before training."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from hvscale.trainer.config import TrainConfig
from hvscale.trainer.progress import say
from hvscale.trainer.ranks import Ranks

# The candidates take turns until each has had both, besides a first step that warms up.
TIMED_STEPS = 2
TIMED_SECONDS = 0.4
# Where a step takes longer, a quarter of the batch is timed.
LONG_STEP_SECONDS = 1.0
Criterion = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Arithmetic:
    precision: str
    """fp32, or what autocast computes in: bf16, fp16."""
    channels_last: bool

    def __str__(self) -> str:
        autocast = " autocast" * (self.precision != "fp32")
        return self.precision + autocast + " + channels_last" * self.channels_last

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor, criterion: Criterion) -> Tensor:
        """`criterion` of the model's output, computed in fp32.

        Only the images are put in channels-last order, and with them all activations: Horovod refuses to reduce gradients
        of channels-last parameters, which are not contiguous.
        """
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        lower = torch.float16 if self.precision == "fp16" else torch.bfloat16
        with torch.autocast(inputs.device.type, dtype=lower, enabled=self.precision != "fp32"):
            output = model(inputs.contiguous(memory_format=order))
        return criterion(output, targets)


def candidates(config: TrainConfig) -> list[Arithmetic]:
    """Those that the configuration leaves open; plain fp32 first where it is one of them. fp16 only when asked for: it can overflow."""
    precisions = ("fp32", "bf16") if config.precision == "auto" else (config.precision,)
    channels_last = {"auto": (False, True), "contiguous": (False,), "channels-last": (True,)}[config.memory_format]
    return [Arithmetic(*pair) for pair in product(precisions, channels_last)]


def choose(
    config: TrainConfig, ranks: Ranks, model: nn.Module, criterion: Criterion, inputs: Tensor, targets: Tensor
) -> Arithmetic:
    """Time a few steps of `model` on this batch with each candidate, on all ranks at once; all take the fastest on average.

    Rank 0 says which, and what the others gave. Leaves the parameters as they were, without gradients.
    """
    choices = candidates(config)
    if len(choices) == 1:
        return choices[0]
    # A copy of the buffers: batch normalisation counts in them what it has seen.
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    by_rank = ranks.gather(images_per_second(model, criterion, inputs, targets, choices))
    for name, value in model.named_buffers():
        value.copy_(buffers[name])
    speeds = [sum(of_ranks) for of_ranks in zip(*by_rank, strict=True)]
    (best, speed), *others = sorted(zip(choices, speeds, strict=True), key=lambda pair: -pair[1])
    if ranks.rank == 0:
        say(f"{best}: {speed:.1f} images/s ({', '.join(f'{choice} {images:.1f}' for choice, images in others)})")
    return best


def images_per_second(
    model: nn.Module, criterion: Criterion, inputs: Tensor, targets: Tensor, choices: list[Arithmetic]
) -> list[float]:
    """Of forward and backward passes with each of `choices`, the best seen; no communication and no optimizer in it."""

    def seconds(arithmetic: Arithmetic) -> float:
        start = time.perf_counter()
        loss = arithmetic.loss(model, inputs, targets, criterion)
        loss.backward()  # type: ignore[no-untyped-call]
        loss.item()  # on a GPU: wait for it
        model.zero_grad()
        return time.perf_counter() - start

    if seconds(choices[0]) > LONG_STEP_SECONDS:
        part = max(2, len(inputs) // 4)  # batch normalisation takes no single one
        inputs, targets = inputs[:part], targets[:part]
    for choice in choices:
        seconds(choice)
    rounds: list[list[float]] = []
    while len(rounds) < TIMED_STEPS or sum(map(min, rounds)) < TIMED_SECONDS:
        rounds.append([seconds(choice) for choice in choices])
    return [len(inputs) / min(of_choice) for of_choice in zip(*rounds, strict=True)]
