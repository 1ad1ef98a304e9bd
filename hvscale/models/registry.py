"""Finds models by name: the project's own, torchvision's classifiers, and a user's own function."""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from torch import nn

from hvscale.core.errors import RequestError
from hvscale.core.suggest import nearest_name
from hvscale.models.preset import PRESETS, SIDES, Preset, Task, torchvision_preset


def names() -> list[str]:
    """The project's own models. `find` also knows torchvision's and users' own."""
    return PRESETS.names()


def find(name: str) -> Preset:
    """The model of this name: one of `names()`, a torchvision classifier, or
    `package.module:function`.

    Raises RequestError, suggesting the nearest name, if there is none.
    """
    if name in names():
        return PRESETS.get(name)
    return users_preset(name) if ":" in name else torchvision_model(name)


def build(name: str, **options: Any) -> nn.Module:
    """A model with fresh weights; `options` replace the preset's defaults (`n_feats=32`).

    Raises RequestError for an unknown name or option, or an invalid value.
    """
    preset = find(name)
    known = inspect.signature(preset.build).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
    for option in options:
        if option not in known and not takes_any:
            raise RequestError(f"{name} has no option {option!r}: it has {', '.join(known)}")
    return preset.build(**options)


def torchvision_model(name: str) -> Preset:
    """Raises RequestError, suggesting the nearest of all models, if torchvision has no such
    classifier.

    `side` is that of the images its published weights were evaluated on.
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
    # The larger vision transformers have published weights for several sizes; the model itself is
    # made for 224.
    return torchvision_preset(name, 224 if name.startswith("vit_") else side)


def users_preset(name: str) -> Preset:
    """The user's function `package.module:function`, importable from the working directory too.

    A function with an argument `scale` makes a super-resolution model (RGB images in 0..255 to
    larger ones), one with `num_classes` a classifier (normalised RGB images to logits). Raises
    RequestError if it has neither or cannot be imported.
    """
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's own code raises
        raise RequestError(f"--model {name}: {module_name} cannot be imported: {error!r}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise RequestError(f"--model {name}: {module_name} has no function {function_name!r}")
    task = task_of(name, function)

    def build_users(**options: object) -> nn.Module:
        model = function(**options)
        if not isinstance(model, nn.Module):
            raise RequestError(f"{name} returned a {type(model).__name__}, not a torch.nn.Module")
        return model

    build_users.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return Preset(build_users, task, SIDES[task])


def task_of(name: str, function: object) -> Task:
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    if "scale" in parameters:
        return "super-resolution"
    if "num_classes" in parameters:
        return "classification"
    raise RequestError(f"{name} must take an argument `scale` (super-resolution) or `num_classes` (classification)")
