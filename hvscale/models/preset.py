"""What a model is, and the registry of the project's own models."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import nn

from hvscale.core.registry import Registry

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])
Task = Literal["super-resolution", "classification"]


@dataclass(frozen=True)
class Preset:
    """A model that can be built."""

    build: Callable[..., nn.Module]
    """Takes keyword arguments, all with defaults."""
    task: Task
    side: int
    """Width and height, in pixels, of the square image that its cost is computed for."""


SIDES: dict[Task, int] = {"super-resolution": 48, "classification": 224}
# Both models' own initialisation, which torchvision announces as the new default and warns about
# until then.
TORCHVISION_OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": {"init_weights": True},
    "inception_v3": {"init_weights": True},
}
PRESETS: Registry[Preset] = Registry("model", "hvscale.models.presets")


def register(name: str, task: Task) -> Callable[[Builder], Builder]:
    """Decorator: registers a function, whose keyword arguments all have defaults, as model
    `name`.
    """

    def add(builder: Builder) -> Builder:
        PRESETS.register(name, Preset(builder, task, SIDES[task]))
        return builder

    return add


def register_torchvision(name: str) -> None:
    """Register a classifier of torchvision, which is imported, in seconds, when the model is
    built.
    """
    PRESETS.register(name, torchvision_preset(name, SIDES["classification"]))


def torchvision_preset(name: str, side: int) -> Preset:
    """torchvision's model of this name with fresh weights."""

    def build(*, num_classes: int = 1000) -> nn.Module:
        import torchvision.models

        options = TORCHVISION_OPTIONS.get(name, {})
        model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **options)
        return model

    return Preset(build, "classification", side)
