"""Models that can be built by name, and what each is for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import nn

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
registered: dict[str, Preset] = {}


def register(name: str, task: Task) -> Callable[[Builder], Builder]:
    """Decorator: makes a function, its keyword arguments all with defaults, known to `build` as `name`."""

    def add(builder: Builder) -> Builder:
        registered[name] = Preset(builder, task, SIDES[task])
        return builder

    return add
