"""Ranks as plain processes of this machine."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hvscale.launch.job import Node, Nodes
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements import Placement, PlacementRequest, register


class HostPlacement(Placement):
    name = "host"
    help = "processes of this machine"

    def readiness(self) -> str:
        return "nothing more is needed"

    def check(self, options: PlacementOptions, np: int) -> None:
        """Always possible."""

    @contextmanager
    def prepare(self, request: PlacementRequest) -> Iterator[Nodes]:
        yield Nodes((Node(name=socket.gethostname(), slots=request.np),))


register(HostPlacement())
