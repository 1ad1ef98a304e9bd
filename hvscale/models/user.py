"""A user's own model: a function of an importable module."""

import importlib
import inspect
import sys
from pathlib import Path

from torch import nn

from hvscale.core.errors import RequestError
from hvscale.models.preset import SIDES, Preset, Task


def find(name: str) -> Preset:
    """`name` is `package.module:function`, importable from the working directory too, as with `python -m`.

    A function with an argument `scale` makes a model for super-resolution (RGB images in 0..255 to larger ones), one with
    `num_classes` a classifier (normalised RGB images to logits). Raises RequestError when it is neither or cannot be imported.
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

    def build(**options: object) -> nn.Module:
        model = function(**options)
        if not isinstance(model, nn.Module):
            raise RequestError(f"{name} gave a {type(model).__name__}: a torch.nn.Module was expected")
        return model

    build.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return Preset(build, task, SIDES[task])


def task_of(name: str, function: object) -> Task:
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    if "scale" in parameters:
        return "super-resolution"
    if "num_classes" in parameters:
        return "classification"
    raise RequestError(
        f"{name} must take an argument `scale` (super-resolution) or `num_classes` (classification), to say what it is for"
    )
