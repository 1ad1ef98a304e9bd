"""The places where ranks can run.

Each is a file in this folder that registers itself; docker.py registers both `docker:rank` and
`docker:node`. Differences between placements are attributes and methods of `Placement`.
docs/how-to/extend.md shows how to add one.
"""

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.run_folder import DEFAULT_PLACEMENT, Library, RunRecord
from hvscale.launch.cleanup.ownership import RunLabel
from hvscale.launch.job import Node, Nodes

if TYPE_CHECKING:
    from hvscale.launch.placement_options import PlacementOptions

__all__ = [
    "DEFAULT_PLACEMENT",
    "Placement",
    "PlacementOptions",
    "PlacementRequest",
    "choose",
    "find",
    "get",
    "names",
    "register",
]


@dataclass(frozen=True)
class PlacementRequest:
    """The input for a placement that creates a job's nodes.

    It adds to `problems` what it could not remove afterwards.
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
    """A way to create nodes. A subclass sets the attributes without a default."""

    name: str
    """Its name for --placement and in run.json."""
    help: str
    """Where the ranks run, in a few words, for the help of --placement."""
    takes: frozenset[str] = frozenset()
    """The fields of PlacementOptions that apply to it."""
    implied_by: frozenset[str] = frozenset()
    """The fields of `takes` that imply --placement with this name."""
    default_nodes: ClassVar[int | None] = None
    """The number of nodes without --nodes; None if the ranks decide it."""
    on_this_machine: ClassVar[bool] = True
    """Whether its ranks always run on this machine, in this machine's memory."""

    @abstractmethod
    def readiness(self) -> str:
        """What this machine has for it; starts nothing.

        Raises RequestError, with how to install it, if something is missing.
        """

    @abstractmethod
    def check(self, options: "PlacementOptions", np: int) -> None:
        """Raises RequestError, with how to fix it, if this machine cannot do what is requested.

        Starts nothing.
        """

    @abstractmethod
    def prepare(self, request: PlacementRequest) -> AbstractContextManager[Nodes]:
        """Context: the nodes; on exit everything is removed, however the run ends.

        Raises RequestError if it fails half-way.
        """

    def recorded_nodes(self, record: RunRecord) -> Nodes:
        """The nodes of a run whose controller has ended, in which programs can still be started.

        By default they are this machine, if the run was on it. Raises RequestError if it cannot be
        said which of them still exist.
        """
        nodes = tuple(Node(one.name, len(one.ranks), one.address, one.interface) for one in record.nodes)
        here = record.host.name == socket.gethostname()
        elsewhere = {} if here else {node.name: f"it was on {record.host.name}" for node in nodes}
        return Nodes(nodes, lost=lambda: elsewhere)


PLACEMENTS: Registry[Placement] = Registry("placement", __name__)


def register(placement: Placement) -> None:
    PLACEMENTS.register(placement.name, placement)


def names() -> list[str]:
    return PLACEMENTS.names()


def placement_help() -> str:
    """The help of --placement."""
    known = ", ".join(f"{name} ({placement.help})" for name, placement in PLACEMENTS.all().items())
    return f"Choose where the ranks run: {known}. [default: {DEFAULT_PLACEMENT}]"


def find(name: str) -> Placement:
    """The placement of this name. Raises RequestError that suggests the nearest name."""
    return PLACEMENTS.get(name, "--placement")


def choose(options: "PlacementOptions") -> Placement:
    """The placement of the options.

    Raises RequestError for an unknown placement, and an option that does not apply to it.
    """
    placement = find(options.name)
    for option in sorted(options.given() - placement.takes):
        takers = [name for name, other in PLACEMENTS.all().items() if option in other.takes]
        raise RequestError(
            f"--{option.replace('_', '-')} does not apply to --placement {placement.name}, only to {', '.join(takers)}"
        )
    return placement


def get(options: "PlacementOptions", np: int) -> Placement:
    """The placement of the options, after it has checked the request.

    Raises RequestError as `choose` does, and for what its check finds.
    """
    placement = choose(options)
    placement.check(options, np)
    return placement
