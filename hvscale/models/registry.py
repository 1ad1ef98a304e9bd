"""Models by name: those of this package, any of torchvision's classification models, and a user's own function."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import nn

from hvscale.errors import RequestError

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])
Task = Literal["super-resolution", "classification"]


@dataclass(frozen=True)
class Preset:
    """A model that can be built, and what it is for."""

    build: Callable[..., nn.Module]
    """Takes keyword arguments, all with defaults."""
    task: Task
    side: int
    """Width and height of the square image that its cost is counted for, in pixels."""


SIDES: dict[Task, int] = {"super-resolution": 48, "classification": 224}
_registered: dict[str, Preset] = {}


def register(name: str, task: Task) -> Callable[[Builder], Builder]:
    """Decorator: makes a function, its keyword arguments all with defaults, known to `build` as `name`."""

    def add(builder: Builder) -> Builder:
        _registered[name] = Preset(builder, task, SIDES[task])
        return builder

    return add


def names() -> list[str]:
    """The models this project is about. torchvision's others and users' own are found by `find` as well."""
    return [*sorted(_registered), "resnet50", "vgg16"]


def find(name: str) -> Preset:
    """`name` is one of `names()`, of torchvision's classification models, or `package.module:function`.

    Raises RequestError when there is no such model.
    """
    if name in _registered:
        return _registered[name]
    if ":" in name:
        from hvscale.models import user

        return user.find(name)
    from hvscale.models import torchvision  # takes seconds to import

    found = torchvision.find(name)
    if found is None:
        raise RequestError(
            f"unknown model {name!r}: known are {', '.join(names())}, "
            "torchvision's other classification models, and your own as package.module:function"
        )
    return found


def build(name: str, **options: Any) -> nn.Module:
    """A model with fresh weights; `options` replace the preset's own (`n_feats=32`).

    Raises RequestError for a name or an option that is not known, or a value that the model cannot have.
    """
    preset = find(name)
    known = inspect.signature(preset.build).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
    for option in options:
        if option not in known and not takes_any:
            raise RequestError(f"{name} has no option {option!r}: it has {', '.join(known)}")
    return preset.build(**options)
