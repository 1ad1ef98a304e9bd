"""A private network of network namespaces on this machine: made, listed and removed by `ip`.

Each node is a namespace with one interface, eth0. Their bridge lies in a namespace of its own,
where no firewall rule of this machine (Docker drops what a bridge forwards) reaches it. One virtual
uplink joins it to this machine, for the launcher; its alias carries the run's label, because a
namespace has nothing but a name. Cable and label are made, and leftovers looked for, under one
lock: a namespace whose uplink is missing is nobody's. In each namespace /etc/hosts names all nodes:
Gloo wants to know the address of its own host name.
"""

import ipaddress
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.launch.cleanup.ownership import CONTROLLER, PREFIX, RUN, RunLabel, machine_lock
from hvscale.launch.job import Node, Nodes, split_evenly
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements import Placement, PlacementRequest, register
from hvscale.launch.placements._link_shaping import bits_per_second, shaping_command
from hvscale.launch.supervision import interrupts
from hvscale.launch.supervision.programs import call, require

NODE_INTERFACE = "eth0"
BRIDGE = "bridge0"
SWITCH = "switch"
LOCK = "namespaces"
SUBNETS = ipaddress.IPv4Network("10.213.0.0/16")
MOST_NODES = 250
LONGEST_ALIAS = 255  # bytes, the kernel's limit
# What lies here in a folder of a namespace's name, `ip netns exec` puts over the same file of /etc.
CONFIGURATIONS = Path("/etc/netns")
CLEANUP = "`hvscale cleanup` removes what a killed run left"


def uplink_name(prefix: str) -> str:
    """The interface of this machine that leads into the network of the namespaces `prefix...`; its
    name has at most 15 characters.
    """
    return "hv" + prefix.split("-")[1]


def free_subnet() -> ipaddress.IPv4Network:
    """A /24 that no route of this machine leads to. Raises RequestError when there is none."""
    routes = [entry["dst"] for entry in json.loads(call(["ip", "-4", "-json", "route", "show"]))]
    used = [ipaddress.IPv4Network(route) for route in routes if route != "default"]
    for subnet in SUBNETS.subnets(new_prefix=24):
        if not any(subnet.overlaps(other) for other in used):
            return subnet
    raise RequestError(f"no free network in {SUBNETS} for the namespaces: {CLEANUP}")


@contextmanager
def network(label: RunLabel, nodes: int) -> Iterator[tuple[ipaddress.IPv4Network, list[str]]]:
    """Make the network with namespaces `label.name(0)` and so on; gives its subnet and the
    namespaces' names. This machine has its first address, the nodes have the following ones.

    Raises RequestError when a name is taken or `ip` fails; nothing is left then.
    """
    subnet = make_switch(label)
    try:
        names = [label.name(number) for number in range(nodes)]
        for number, name in enumerate(names):
            make_node(label.name(SWITCH), name, f"port{number}", f"{subnet[number + 2]}/{subnet.prefixlen}")
        write_hosts({name: str(subnet[number + 2]) for number, name in enumerate(names)})
        yield subnet, names
    finally:
        remove(label.name(""))


def make_switch(label: RunLabel) -> ipaddress.IPv4Network:
    """Make the namespace with the bridge, and the labelled uplink to it. Gives the network's
    addresses, which are taken from then on.

    Raises RequestError as `network` does.
    """
    prefix = label.name("")
    switch, uplink = label.name(SWITCH), uplink_name(prefix)
    with machine_lock(LOCK):
        if taken := [name for name in namespaces() if name.startswith(prefix)]:
            raise RequestError(f"network namespace {taken[0]} exists already: {CLEANUP}")
        if uplink in uplinks():
            raise RequestError(f"network interface {uplink} exists already: {CLEANUP}")
        subnet = free_subnet()
        try:
            make_namespace(switch)
            call(["ip", "-n", switch, "link", "add", BRIDGE, "up", "type", "bridge"])
            call(["ip", "link", "add", uplink, "type", "veth", "peer", "name", "here", "netns", switch])
            call(["ip", "link", "set", "dev", uplink, "up", "alias", alias(label)])
            call(["ip", "addr", "add", f"{subnet[1]}/{subnet.prefixlen}", "dev", uplink])
            call(["ip", "-n", switch, "link", "set", "dev", "here", "up", "master", BRIDGE])
        except BaseException:
            remove(prefix)
            raise
    return subnet


def make_node(switch: str, name: str, port: str, address: str) -> None:
    """Make the node's namespace, with an interface of this address (CIDR) that is joined to the
    switch's bridge.
    """
    make_namespace(name)
    end_here, end_there = ["netns", name, "type", "veth"], ["peer", "name", port, "netns", switch]
    call(["ip", "link", "add", NODE_INTERFACE, *end_here, *end_there])
    call(["ip", "-n", name, "addr", "add", address, "dev", NODE_INTERFACE])
    call(["ip", "-n", name, "link", "set", "dev", NODE_INTERFACE, "up"])
    call(["ip", "-n", switch, "link", "set", "dev", port, "up", "master", BRIDGE])


def make_namespace(name: str) -> None:
    call(["ip", "netns", "add", name])
    call(["ip", "-n", name, "link", "set", "dev", "lo", "up"])


def write_hosts(addresses: Mapping[str, str]) -> None:
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    try:
        for name in addresses:
            (CONFIGURATIONS / name).mkdir(parents=True, exist_ok=True)
            (CONFIGURATIONS / name / "hosts").write_text("\n".join(lines) + "\n")
    except OSError as error:
        raise RequestError(f"{CONFIGURATIONS} cannot be written: {error.strerror}") from error


def alias(label: RunLabel) -> str:
    """The end of the run's path stands in it, where the whole is too long."""
    start = f"{CONTROLLER}={label.controller} {RUN}="
    return start + os.fsencode(label.run)[-(LONGEST_ALIAS - len(start)) :].decode(errors="ignore")


def namespaces() -> list[str]:
    """The names of this machine's network namespaces, those that `ip netns` knows."""
    return [entry["name"] for entry in json.loads(call(["ip", "-json", "netns", "list"]) or "[]")]


def uplinks() -> dict[str, str]:
    """The alias of each interface of this machine by its name, for the interfaces that could be
    ours.
    """
    links = json.loads(call(["ip", "-json", "link", "show"]))
    return {entry["ifname"]: entry.get("ifalias", "") for entry in links if entry["ifname"].startswith("hv")}


def remove(prefix: str) -> list[str]:
    """Kill what runs in the namespaces whose names start with `prefix`, and remove them with their
    uplink. Gives their names.
    """
    interrupts.disable_interrupts()
    # The switch last: the uplink goes with it, and its alias names the run that owns all this.
    names = sorted((name for name in namespaces() if name.startswith(prefix)), key=lambda name: name.endswith(SWITCH))
    for name in names:
        with suppress(RequestError):
            for pid in call(["ip", "netns", "pids", name]).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
    for name in names:
        shutil.rmtree(CONFIGURATIONS / name, ignore_errors=True)
        with suppress(RequestError):
            call(["ip", "netns", "del", name])
    # The kernel removes it with the switch, but only some time later.
    with suppress(RequestError):
        call(["ip", "link", "del", "dev", uplink_name(prefix)])
    return names


def labels() -> dict[str, RunLabel]:
    """Whose the namespaces of runs are, by the start of their names; a label without a controller
    for those whose uplink is missing.
    """
    starts = {name.rpartition("-")[0] + "-" for name in namespaces() if re.match(rf"{PREFIX}-[0-9a-f]{{8}}-", name)}
    aliases = uplinks()
    read = {start: aliases.get(uplink_name(start), "").split(" ", 1) for start in starts}
    return {start: RunLabel.read(dict(word.partition("=")[::2] for word in words)) for start, words in read.items()}


def remove_leftovers(remove_them: bool = True) -> list[tuple[RunLabel, str]]:
    """Remove the networks whose controllers are gone, or only look; gives the label, and the start
    of the namespaces' names.
    """
    with machine_lock(LOCK):
        gone = {(start, label) for start, label in labels().items() if not label.is_live}
        # Of a controller that was gone before nothing can go away by itself any more: what is there
        # is left behind.
        found = [(label, start) for start, label in labels().items() if (start, label) in gone]
        for _, start in found if remove_them else []:
            remove(start)
    return found


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
        if wanted > MOST_NODES:
            raise RequestError(f"--nodes {wanted}: at most {MOST_NODES} network namespaces fit into one network")
        if options.nodes and options.nodes > np:
            raise RequestError(
                f"--nodes {options.nodes} for -np {np}: each node needs a rank; ask for fewer nodes or more ranks"
            )
        if options.link:
            bits_per_second(options.link)

    @contextmanager
    def prepare(self, request: PlacementRequest) -> Iterator[Nodes]:
        options = request.options
        slots = split_evenly(request.np, min(options.nodes or DEFAULT_NODES, request.np))
        with network(request.label, len(slots)) as (subnet, names):
            if options.link:
                for name in names:
                    call(["ip", "netns", "exec", name, *shaping_command(NODE_INTERFACE, options.link)])
            nodes = [
                Node(
                    name=name,
                    slots=slots[number],
                    address=str(subnet[number + 2]),
                    interface=NODE_INTERFACE,
                    agent=("ip", "netns", "exec", name, *IN_NAMESPACE, name),
                )
                for number, name in enumerate(names)
            ]
            yield Nodes(tuple(nodes), controller=str(subnet[1]), subnet=str(subnet), settings={"link": options.link})


register(NetworkNamespaces())
