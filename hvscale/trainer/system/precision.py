"""Precision and memory format, measured once before training, and torch.compile."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from hvscale import models
from hvscale.core.compiler_tools import compile_without_openssl
from hvscale.core.errors import RequestError
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.progress import log_line
from hvscale.trainer.ranks import Ranks

# After one warm-up step each, the candidates alternate until the fastest one has run for so long,
# for at least and at most so many steps. Only the shortest step counts: 20 short ones show it.
TIMED_SECONDS = 0.4
FEWEST_STEPS, MOST_STEPS = 2, 20
# If a step takes longer, only a quarter of the batch is timed.
LONG_STEP_SECONDS = 1.0
Criterion = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class ComputeFormat:
    """Precision and memory format of the model's computation."""

    precision: str
    """fp32, or the autocast type: bf16 or fp16."""
    channels_last: bool

    def __str__(self) -> str:
        autocast = " autocast" * (self.precision != "fp32")
        return self.precision + autocast + " + channels_last" * self.channels_last

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor, criterion: Criterion) -> Tensor:
        """`criterion` of the model's output, computed in fp32.

        Only images, and therefore activations, are channels-last. Horovod does not reduce gradients
        of channels-last parameters, because they are not contiguous. Raises RequestError if the
        output has no gradient, and as `forward` does.
        """
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        lower = torch.float16 if self.precision == "fp16" else torch.bfloat16
        with torch.autocast(inputs.device.type, dtype=lower, enabled=self.precision != "fp32"):
            output = forward(model, inputs.contiguous(memory_format=order))
        loss = criterion(output, targets)
        if not loss.requires_grad:
            raise RequestError("the model's output depends on no parameter that requires a gradient: nothing to train")
        return loss


def forward(model: nn.Module, inputs: Tensor) -> Any:
    """The model's output.

    Raises RequestError if a model of torchvision cannot take images like these.
    """
    try:
        return model(inputs)
    except (AssertionError, RuntimeError, ValueError) as error:
        # A user's traceback shows the place in their code. A subclass is not about the images.
        is_torchvision = type(model).__module__.startswith("torchvision.")
        if not is_torchvision or type(error) not in (AssertionError, RuntimeError, ValueError):
            raise
        count, _, height, width = inputs.shape
        raise RequestError(
            f"the model does not take a batch of {count} images of {width}x{height} pixels "
            f"(--batch-size, --image-size): {error}"
        ) from error


def candidates(config: TrainConfig) -> list[ComputeFormat]:
    """The formats that the configuration allows, plain fp32 first.

    fp16 is used only on request, because it can overflow.
    """
    precisions = ("fp32", "bf16") if config.precision == "auto" else (config.precision,)
    channels_last = {"auto": (False, True), "contiguous": (False,), "channels-last": (True,)}[config.memory_format]
    return [ComputeFormat(*pair) for pair in product(precisions, channels_last)]


def choose(
    config: TrainConfig, ranks: Ranks, model: nn.Module, criterion: Criterion, inputs: Tensor, targets: Tensor
) -> ComputeFormat:
    """The fastest candidate for `model` on this batch, averaged over the ranks. Collective.

    All ranks time a few steps at the same time, and rank 0 prints the throughputs. The model does
    not change.
    """
    choices = candidates(config)
    if len(choices) == 1:
        return choices[0]
    # Batch normalisation changes its buffers.
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    extra = copy.deepcopy(models.extra_state(model))
    by_rank = ranks.allgather(images_per_second(model, criterion, inputs, targets, choices))
    for name, value in model.named_buffers():
        value.copy_(buffers[name])
    if extra:
        model.load_state_dict(extra, strict=False)
    speeds = [sum(of_ranks) for of_ranks in zip(*by_rank, strict=True)]
    (best, speed), *others = sorted(zip(choices, speeds, strict=True), key=lambda pair: -pair[1])
    if ranks.rank == 0:
        log_line(f"{best}: {speed:.1f} images/s ({', '.join(f'{choice} {images:.1f}' for choice, images in others)})")
    return best


def images_per_second(
    model: nn.Module, criterion: Criterion, inputs: Tensor, targets: Tensor, choices: list[ComputeFormat]
) -> list[float]:
    """Best throughput of forward and backward passes with each of `choices`.

    Without communication and optimizer.
    """

    def seconds(compute_format: ComputeFormat) -> float:
        start = time.perf_counter()
        loss = compute_format.loss(model, inputs, targets, criterion)
        loss.backward()  # type: ignore[no-untyped-call]
        loss.item()  # on a GPU: waits for the step
        model.zero_grad()
        return time.perf_counter() - start

    if seconds(choices[0]) > LONG_STEP_SECONDS:
        part = max(2, len(inputs) // 4)  # batch normalisation needs more than one image
        inputs, targets = inputs[:part], targets[:part]
    for choice in choices:
        seconds(choice)
    rounds: list[list[float]] = []
    while len(rounds) < FEWEST_STEPS or (len(rounds) < MOST_STEPS and sum(map(min, rounds)) < TIMED_SECONDS):
        rounds.append([seconds(choice) for choice in choices])
    return [len(inputs) / min(of_choice) for of_choice in zip(*rounds, strict=True)]


def compile_blocks(model: nn.Module) -> None:
    """Compile each repeated block in place. A block is an element of a sequence, with sublayers.

    State dicts keep their keys. Compiling the whole model would deliver all gradients at the end of
    the backward pass, so their exchange could not overlap it. Raises RequestError for a model
    without repeated blocks.
    """
    sequences = [module for module in model.modules() if isinstance(module, nn.Sequential | nn.ModuleList)]
    blocks = [block for sequence in sequences for block in sequence if not isinstance(block, nn.Sequential)]
    blocks = [block for block in blocks if next(block.children(), None) is not None]
    if not blocks:
        raise RequestError("the model has no repeated blocks to compile: leave out --compile")
    compile_without_openssl()
    for block in blocks:
        block.compile()
