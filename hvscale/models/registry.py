"""Models by name: those of this package, any of torchvision's classification models, and a user's own function."""

import inspect
from typing import Any

from torch import nn

from hvscale.core.errors import RequestError
from hvscale.models.preset import Preset, registered


def names() -> list[str]:
    """The models this project is about. torchvision's others and users' own are found by `find` as well."""
    return [*sorted(registered), "resnet50", "vgg16"]


def find(name: str) -> Preset:
    """`name` is one of `names()`, of torchvision's classification models, or `package.module:function`.

    Raises RequestError when there is no such model.
    """
    if name in registered:
        return registered[name]
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
