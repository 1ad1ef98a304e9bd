"""The places where ranks can run. Each is one file in this folder that registers itself: `docker:rank` and `docker:node` are docker.py's.

A file is loaded when its placement, or one that is not known, is asked for.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from hvscale.launch.nodes.labels import RunLabel
from hvscale.launch.nodes.nodes import Nodes
from hvscale.launch.placement_options import PlacementOptions

__all__ = ["Placement", "PlacementOptions", "Request", "get", "names", "register"]


@dataclass(frozen=True)
class Request:
    """What a placement needs to know to make room for a job; in `problems` it says what it could not remove afterwards."""

    np: int
    command: list[str]
    run: Path
    environment: Mapping[str, str]
    library: Library
    options: PlacementOptions
    problems: list[str] = field(default_factory=list)

    @property
    def label(self) -> RunLabel:
        return RunLabel.of(self.run)


class Placement(Protocol):
    """A way to make nodes. `takes` names the options of PlacementOptions that mean something to it."""

    @property
    def name(self) -> str: ...
    @property
    def takes(self) -> frozenset[str]: ...

    def readiness(self) -> str:
        """What there is for it on this machine, in words. Raises RequestError, saying how to get it, when something lacks; starts nothing."""

    def check(self, options: PlacementOptions, np: int) -> None:
        """Raises RequestError, saying how to mend it, when this machine cannot do what is asked for; starts nothing."""

    def prepare(self, request: Request) -> AbstractContextManager[Nodes]:
        """Make the nodes; everything is freed on exit, however the run ends. Raises RequestError when it fails half-way."""


_placements: dict[str, Placement] = {}


def register(placement: Placement) -> None:
    _placements[placement.name] = placement


def names() -> list[str]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sorted(_placements)


def readiness(name: str) -> str:
    """What there is for a placement; raises RequestError with what lacks."""
    return known(name).readiness()


def known(name: str) -> Placement:
    """Raises RequestError for one that is not."""
    file = name.partition(":")[0]
    if file in {module.name for module in pkgutil.iter_modules(__path__)}:
        importlib.import_module(f"{__name__}.{file}")
    if name not in _placements:
        raise RequestError(f"--placement {name}: unknown placement; known are {', '.join(names())}")
    return _placements[name]


def get(options: PlacementOptions, np: int) -> Placement:
    """The placement asked for, after it has said that it can be had.

    Raises RequestError for an unknown one, for an option that means nothing to it, and for what its own check finds.
    """
    name = options.name
    placement = known(name)
    for option in sorted(options.asked() - placement.takes):
        takers = [other for other in names() if option in _placements[other].takes]
        raise RequestError(
            f"--{option.replace('_', '-')} means nothing to --placement {name}: it is for {', '.join(takers)}"
        )
    placement.check(options, np)
    return placement
