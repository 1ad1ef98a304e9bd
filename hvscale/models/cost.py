"""The cost of a model: parameters, gradient bytes that ranks exchange, and FLOPs."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import HvscaleError, RequestError
from hvscale.models.modes import evaluation_mode
from hvscale.models.registry import Task, build, find

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    parameters: int
    """Trainable parameters; frozen ones, such as EDSR's mean shift, are not counted."""
    tensors: int
    """Trainable tensors: the number of gradients that Horovod receives in each step."""
    gradient_bytes: int
    """Bytes of all gradients in the parameters' type; each step all-reduces them."""
    forward_flops: int
    """Floating-point operations of one forward pass; a multiply-add counts as two."""


def cost(model: nn.Module, input_shape: tuple[int, ...]) -> Cost:
    """The cost for inputs of shape `input_shape`, batch first: (1, 3, 48, 48).

    Runs on fake tensors, which compute shapes only.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    # Auxiliary classifiers run in training only. Not under no_grad: it fuses attention into one
    # operation, which the counter does not support.
    with evaluation_mode(model), fake_mode(model), flop_counter() as counter:
        model(torch.empty(input_shape, device=device_of(model)))
    return Cost(
        parameters=sum(p.numel() for p in trainable),
        tensors=len(trainable),
        gradient_bytes=sum(p.numel() * p.element_size() for p in trainable),
        forward_flops=counter.get_total_flops(),
    )


def flop_counter() -> "FlopCounterMode":
    """A counter that prints nothing. Its module loads Triton, which training does not need."""
    from torch.utils.flop_counter import FlopCounterMode

    return FlopCounterMode(display=False)


@dataclass(frozen=True)
class ReadyGradient:
    name: str
    elements: int
    flops_share: float
    """Share of the step's operations, forward and backward, that precede this gradient."""


def gradients_in_order(model: nn.Module, input_shape: tuple[int, ...]) -> list[ReadyGradient]:
    """The gradients of a step in the order in which the backward pass finishes them.

    `input_shape`: batch first. Runs on fake tensors, which compute shapes only. Parameters that the
    evaluation mode does not use, such as those of auxiliary classifiers, have no gradient.
    """
    finished: list[tuple[str, int, int]] = []
    counter = flop_counter()

    def hook_of(name: str) -> Callable[[torch.Tensor], None]:
        return lambda parameter: finished.append((name, parameter.numel(), counter.get_total_flops()))

    trainable = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    handles = [
        one.register_post_accumulate_grad_hook(hook_of(name))  # type: ignore[no-untyped-call]
        for name, one in trainable
    ]
    with evaluation_mode(model), fake_mode(model), counter:
        outputs = tree_leaves(model(torch.empty(input_shape, device=trainable[0][1].device)))
        sums = [one.float().sum() for one in outputs if isinstance(one, torch.Tensor)]
        torch.stack(sums).sum().backward()  # type: ignore[no-untyped-call]
    for handle in handles:
        handle.remove()
    total = max(counter.get_total_flops(), 1)
    return [ReadyGradient(name, elements, flops / total) for name, elements, flops in finished]


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter; the CPU without parameters."""
    return next((one.device for one in model.parameters()), torch.device("cpu"))


def fake_mode(model: nn.Module) -> FakeTensorMode:
    """The mode that the model's fake weights need, or one that accepts real weights."""
    first = next(model.parameters(), None)
    return first.fake_mode if isinstance(first, FakeTensor) else FakeTensorMode(allow_non_fake_inputs=True)


class ModelRow(BaseModel):
    """One row of the model table."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    task: Task
    scale: int | None
    """Upscaling factor; None for a classifier."""
    input_width: int
    """Width, in pixels, of the square image that `forward_flops` is for."""
    parameters: int
    forward_flops: int
    gradient_bytes: int
    gradient_tensors: int


class ModelTable(VersionedDocument):
    schema_: Literal["hvscale/models/1"] = "hvscale/models/1"
    models: list[ModelRow]


def model_rows(name: str, **options: Any) -> list[ModelRow]:
    """The model's cost: one row, or one for each scale if `options` do not set the scale.

    Raises RequestError as `build` does, and if a user's model cannot be built without further
    options or does not take an image of the assumed size.
    """
    preset = find(name)
    if preset.task == "super-resolution" and "scale" not in options:
        return [row for scale in (2, 3, 4) for row in model_rows(name, scale=scale, **options)]
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # it logs what is raised
    try:
        model_cost = cost(build_on_fake_tensors(name, **options), (1, 3, preset.side, preset.side))
    except HvscaleError:
        raise
    except Exception as error:  # whatever the user's own code raises
        reason = " ".join([f"{type(error).__name__}:", *str(error).splitlines()[:1]])
        raise RequestError(f"{name}: no cost for an image of {preset.side}x{preset.side} pixels: {reason}") from error
    return [
        ModelRow(
            name=name,
            task=preset.task,
            scale=options.get("scale"),
            input_width=preset.side,
            parameters=model_cost.parameters,
            forward_flops=model_cost.forward_flops,
            gradient_bytes=model_cost.gradient_bytes,
            gradient_tensors=model_cost.tensors,
        )
    ]


def build_on_fake_tensors(name: str, **options: Any) -> nn.Module:
    """The model with fake weights, or real ones if its constructor reads values (as RegNets do)."""
    try:
        with FakeTensorMode():
            return build(name, **options)
    except (DataDependentOutputException, RuntimeError):
        return build(name, **options)
