"""Names of models, and the functions that build them."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from hvscale.errors import RequestError

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])
_builders: dict[str, Callable[..., nn.Module]] = {}


def register(name: str) -> Callable[[Builder], Builder]:
    """Decorator: makes a function, its keyword arguments all with defaults, known to `build` as `name`."""

    def add(builder: Builder) -> Builder:
        _builders[name] = builder
        return builder

    return add


def names() -> list[str]:
    return sorted(_builders)


def build(name: str, **options: Any) -> nn.Module:
    """A model with fresh weights; `options` replace the preset's own (`n_feats=32`).

    Raises RequestError for a name or an option that is not known, or a value that the model cannot have.
    """
    if name not in _builders:
        raise RequestError(f"unknown model {name!r}: known are {', '.join(names())}")
    known = inspect.signature(_builders[name]).parameters
    for option in options:
        if option not in known:
            raise RequestError(f"{name} has no option {option!r}: it has {', '.join(known)}")
    return _builders[name](**options)
