"""A network namespace for each node, joined by a bridge: an emulated network on one machine,
without containers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from hvscale.core.errors import RequestError
from hvscale.launch.nodes import link, network_namespaces
from hvscale.launch.nodes.nodes import Node, Nodes, blocks
from hvscale.launch.nodes.tools import call, require
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements import Placement, PlacementRequest, register

DEFAULT_NODES = 2
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
# A name of its own for each node: launchers and libraries tell nodes apart by it. The words after
# `sh -c` are "$0" and "$@".
IN_NAMESPACE = ("unshare", "--uts", "/bin/sh", "-c", 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"')


class NetworkNamespaces(Placement):
    name = "netns"
    help = "network namespaces that emulate nodes"
    takes = frozenset({"nodes", "link"})

    def readiness(self) -> str:
        found = [require(program, package, "--placement netns") for program, package in PROGRAMS.items()]
        if os.geteuid() != 0:
            raise RequestError(
                "--placement netns makes network namespaces, which takes root: use sudo, or --placement docker:rank"
            )
        return f"root, {', '.join(found)}"

    def check(self, options: PlacementOptions, np: int) -> None:
        self.readiness()
        wanted = options.nodes or DEFAULT_NODES
        if wanted > network_namespaces.MOST_NODES:
            raise RequestError(
                f"--nodes {wanted}: at most {network_namespaces.MOST_NODES} network namespaces fit into one network"
            )
        if options.nodes and options.nodes > np:
            raise RequestError(
                f"--nodes {options.nodes} for -np {np}: each node needs a rank; ask for fewer nodes or more ranks"
            )
        if options.link:
            link.bits_per_second(options.link)

    @contextmanager
    def prepare(self, request: PlacementRequest) -> Iterator[Nodes]:
        options = request.options
        slots = blocks(request.np, min(options.nodes or DEFAULT_NODES, request.np))
        interface = network_namespaces.NODE_INTERFACE
        with network_namespaces.network(request.label, len(slots)) as (subnet, names):
            if options.link:
                for name in names:
                    call(["ip", "netns", "exec", name, *link.shaping(interface, options.link)])
            nodes = [
                Node(
                    name=name,
                    slots=slots[number],
                    address=str(subnet[number + 2]),
                    interface=interface,
                    agent=("ip", "netns", "exec", name, *IN_NAMESPACE, name),
                )
                for number, name in enumerate(names)
            ]
            yield Nodes(tuple(nodes), controller=str(subnet[1]), subnet=str(subnet), settings={"link": options.link})


register(NetworkNamespaces())
