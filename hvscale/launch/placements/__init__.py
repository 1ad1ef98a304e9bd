"""The places where ranks can run. Each is one file in this folder that registers itself:
`docker:rank` and `docker:node` are docker.py's.

What differs between placements is an attribute or a method of `Placement`, and stands in the
placement's own file. docs/how-to/extend.md shows how to add one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.run_folder import DEFAULT_PLACEMENT, Library
from hvscale.launch.cleanup.ownership import RunLabel
from hvscale.launch.job import Nodes

if TYPE_CHECKING:
    from hvscale.launch.placement_options import PlacementOptions

__all__ = [
    "DEFAULT_PLACEMENT",
    "Placement",
    "PlacementOptions",
    "PlacementRequest",
    "find",
    "get",
    "names",
    "register",
]


@dataclass(frozen=True)
class PlacementRequest:
    """What a placement needs to know to make the nodes of a job; it adds to `problems` what it
    could not remove afterwards.
    """

    np: int
    command: list[str]
    run: Path
    environment: Mapping[str, str]
    library: Library
    options: "PlacementOptions"
    problems: list[str] = field(default_factory=list)

    @property
    def label(self) -> RunLabel:
        return RunLabel.of(self.run)


class Placement(ABC):
    """A way to make nodes. A subclass sets what has no default here."""

    name: str
    """What --placement and run.json call it."""
    help: str
    """Where the ranks run, in a few words, for the help of --placement."""
    takes: frozenset[str] = frozenset()
    """The options of PlacementOptions that mean something to it."""
    implied_by: frozenset[str] = frozenset()
    """Those of `takes` that stand for --placement with this name."""
    on_this_machine: ClassVar[bool] = True
    """Whether its ranks always run on this machine, in this machine's memory."""

    @abstractmethod
    def readiness(self) -> str:
        """What this machine has for it. Raises RequestError, with how to install it, when something
        is missing; starts nothing.
        """

    @abstractmethod
    def check(self, options: "PlacementOptions", np: int) -> None:
        """Raises RequestError, with how to fix it, when this machine cannot do what is asked for;
        starts nothing.
        """

    @abstractmethod
    def prepare(self, request: PlacementRequest) -> AbstractContextManager[Nodes]:
        """Make the nodes; everything is freed on exit, however the run ends. Raises RequestError
        when it fails half-way.
        """


PLACEMENTS: Registry[Placement] = Registry("placement", __name__)


def register(placement: Placement) -> None:
    PLACEMENTS.register(placement.name, placement)


def names() -> list[str]:
    return PLACEMENTS.names()


def placement_help() -> str:
    """The help of --placement."""
    known = ", ".join(f"{name} ({placement.help})" for name, placement in PLACEMENTS.all().items())
    return f"Where the ranks run: {known}. [default: {DEFAULT_PLACEMENT}]"


def find(name: str) -> Placement:
    """Raises RequestError, suggesting the nearest one, for an unknown placement."""
    return PLACEMENTS.get(name, "--placement")


def get(options: "PlacementOptions", np: int) -> Placement:
    """The placement asked for, after its own check of the request.

    Raises RequestError for an unknown one, for an option that it does not take, and for what its
    check finds.
    """
    placement = find(options.name)
    for option in sorted(options.given() - placement.takes):
        takers = [name for name, other in PLACEMENTS.all().items() if option in other.takes]
        raise RequestError(
            f"--{option.replace('_', '-')} does not apply to --placement {placement.name}, only to {', '.join(takers)}"
        )
    placement.check(options, np)
    return placement
