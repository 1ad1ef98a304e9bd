"""Finds models by name: the project's own, torchvision's classifiers and users' own functions."""

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import nn
from torch.nn.parameter import is_lazy

from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.suggest import nearest_name

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])
Task = Literal["super-resolution", "classification"]


@dataclass(frozen=True)
class Preset:
    """A model that can be built."""

    builder: Callable[..., object]
    """Takes the model's options as keyword arguments and returns an `nn.Module`."""
    task: Task
    side: int
    """Width and height, in pixels, of the square image that its cost is computed for."""


INPUT_SIDES: dict[Task, int] = {"super-resolution": 48, "classification": 224}
# Without this option torchvision warns that it will change these models' default initialisation.
TORCHVISION_OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": {"init_weights": True},
    "inception_v3": {"init_weights": True},
}
PRESETS: Registry[Preset] = Registry("model", "hvscale.models.presets")


def register(name: str, task: Task) -> Callable[[Builder], Builder]:
    """Decorator: registers a function as model `name`. All its arguments need defaults."""

    def add(builder: Builder) -> Builder:
        PRESETS.register(name, Preset(builder, task, INPUT_SIDES[task]))
        return builder

    return add


def register_torchvision(name: str) -> None:
    """Register a torchvision classifier without importing torchvision, which takes seconds."""
    PRESETS.register(name, torchvision_preset(name, INPUT_SIDES["classification"]))


def torchvision_preset(name: str, side: int) -> Preset:
    """torchvision's model of this name with fresh weights."""

    def builder(*, num_classes: int = 1000) -> nn.Module:
        try:
            import torchvision.models
        except ImportError as error:
            raise RequestError(
                f"{name} is a model of torchvision, which cannot be imported ({error}): install the release made for this PyTorch"
            ) from error
        options = TORCHVISION_OPTIONS.get(name, {})
        model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **options)
        return model

    return Preset(builder, "classification", side)


def names() -> list[str]:
    """The project's own models. `find` also accepts torchvision's and users' models."""
    return PRESETS.names()


def find(name: str) -> Preset:
    """The model `name`: one of `names()`, a torchvision classifier, or `package.module:function`.

    Raises RequestError, suggesting the nearest name, if there is no such model.
    """
    if name in names():
        return PRESETS.get(name)
    return find_user_function(name) if ":" in name else find_torchvision_model(name)


def build(name: str, **options: Any) -> nn.Module:
    """A model with fresh weights; `options` replace the preset's defaults (`n_feats=32`).

    Raises RequestError for an unknown name or option, an invalid value, or a user's function that
    needs further arguments or returns no complete model.
    """
    builder = find(name).builder
    signature = inspect.signature(builder)
    known = signature.parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
    for option in options:
        if option not in known and not takes_any:
            raise RequestError(f"{name} has no option {option!r}: it has {', '.join(known)}")
    try:
        signature.bind(**options)
    except TypeError as error:
        given = ", ".join(f"{option}={value}" for option, value in options.items())
        raise RequestError(f"{name} cannot be called with ({given}): {error}") from error
    model = builder(**options)
    if not isinstance(model, nn.Module):
        raise RequestError(f"{name} returned a {type(model).__name__}, not a torch.nn.Module")
    if any(is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        raise RequestError(
            f"{name} has lazy layers without weights: pass a batch through the model before the function returns it"
        )
    return model


def find_torchvision_model(name: str) -> Preset:
    """The torchvision classifier `name`; `side` is the image size its weights were evaluated at.

    Raises RequestError, suggesting the nearest of all models, if there is no such classifier.
    """
    import torchvision.models  # takes seconds

    known: list[str] = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        nearest = nearest_name(name, [*names(), *known])
        raise RequestError(
            f"{name}: unknown model{f'; did you mean {nearest}?' if nearest else '.'} Known: {', '.join(names())}, "
            "torchvision's other classification models, and your own as package.module:function"
        )
    (side,) = torchvision.models.get_model_weights(name).DEFAULT.transforms().crop_size
    # The larger vision transformers publish weights for several sizes; the model itself takes 224.
    return torchvision_preset(name, 224 if name.startswith("vit_") else side)


def find_user_function(name: str) -> Preset:
    """The user's function `package.module:function`; modules in the working directory work too.

    A function with an argument `scale` makes a super-resolution model (RGB images in 0..255 to
    larger ones), one with `num_classes` a classifier (normalised RGB images to logits). Raises
    RequestError if it has neither argument or cannot be imported.
    """
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's own code raises
        raise RequestError(f"{name}: {module_name} cannot be imported: {error!r}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise RequestError(f"{name}: {module_name} has no function {function_name!r}")
    task = infer_task(name, function)
    return Preset(function, task, INPUT_SIDES[task])


def infer_task(name: str, function: Callable[..., object]) -> Task:
    """The task that the function's arguments imply. Raises RequestError if they imply none."""
    parameters = inspect.signature(function).parameters
    if "scale" in parameters:
        return "super-resolution"
    if "num_classes" in parameters:
        return "classification"
    raise RequestError(f"{name} must take an argument `scale` (super-resolution) or `num_classes` (classification)")
