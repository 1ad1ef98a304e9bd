"""Ranks as plain processes of this machine."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hvscale.launch.nodes.nodes import Node, Nodes
from hvscale.launch.placements import PlacementOptions, Request, register


class Host:
    name = "host"
    takes: frozenset[str] = frozenset()

    def readiness(self) -> str:
        return "nothing more is needed"

    def check(self, options: PlacementOptions, np: int) -> None:
        """Nothing is needed."""

    @contextmanager
    def prepare(self, request: Request) -> Iterator[Nodes]:
        yield Nodes((Node(name=socket.gethostname(), slots=request.np),))


register(Host())
