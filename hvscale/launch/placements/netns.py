"""Network namespaces as nodes, joined by a bridge: an emulated network without containers.

`ip` creates, lists and removes them. Each node is a namespace with one interface, eth0. The bridge
is in another namespace, where this machine's firewall rules do not apply (Docker drops what a
bridge forwards). A veth pair, the uplink, joins the bridge to this machine, for the launcher. The
uplink's alias holds the run's label, because a namespace has only a name. Uplinks are created, and
leftovers searched for, under one lock: a namespace without an uplink belongs to no run. In each
namespace /etc/hosts names all nodes, because Gloo resolves its own host name.
"""

import ipaddress
import itertools
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
# The second one, which is for benchmarks (RFC 2544), is for sites that route all of 10.0.0.0/8.
RANGES = (ipaddress.IPv4Network("10.213.0.0/16"), ipaddress.IPv4Network("198.18.0.0/16"))
MOST_NODES = 250
LONGEST_ALIAS = 255  # bytes, the kernel's limit
# `ip netns exec` mounts the files of this folder's sub-folder for the namespace over those in /etc.
CONFIGURATIONS = Path("/etc/netns")
CLEANUP = "run `hvscale cleanup` to remove what a killed run left"


def uplink_name(prefix: str) -> str:
    """This machine's interface to the namespaces `prefix...`; it has at most 15 characters."""
    return "hv" + prefix.split("-")[1]


def free_subnet() -> ipaddress.IPv4Network:
    """A /24 without a route on this machine. Raises RequestError if there is none."""
    routes = [entry["dst"] for entry in json.loads(call(["ip", "-4", "-json", "route", "show"]))]
    used = [ipaddress.IPv4Network(route) for route in routes if route != "default"]
    used = [route for route in used if route.prefixlen > 1]  # two of /1 are a VPN's default route
    for subnet in itertools.chain.from_iterable(found.subnets(new_prefix=24) for found in RANGES):
        if not any(subnet.overlaps(other) for other in used):
            return subnet
    raise RequestError(
        f"no free network in {' and '.join(map(str, RANGES))} for the namespaces: `ip route` shows what uses them; {CLEANUP}"
    )


@contextmanager
def network(label: RunLabel, nodes: int) -> Iterator[tuple[ipaddress.IPv4Network, list[str]]]:
    """Context: the subnet and names of new namespaces `label.name(0)` and so on.

    This machine has the first address, and the nodes have the next ones. Raises RequestError if a
    name is taken or `ip` fails, and then leaves nothing.
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
    """Create the namespace with the bridge, and the labelled uplink; return the reserved subnet.

    Raises RequestError as `network` does.
    """
    prefix = label.name("")
    switch, uplink = label.name(SWITCH), uplink_name(prefix)
    with machine_lock(LOCK):
        if taken := [name for name in namespaces() if name.startswith(prefix)]:
            raise RequestError(f"network namespace {taken[0]} already exists: {CLEANUP}")
        if uplink in uplinks():
            raise RequestError(f"network interface {uplink} already exists: {CLEANUP}")
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
    """Create the node's namespace, with an interface of this address (CIDR) on the bridge."""
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
    """The interface alias with the run's label; if too long, it holds the end of the run's path."""
    start = f"{CONTROLLER}={label.controller} {RUN}="
    return start + os.fsencode(label.run)[-(LONGEST_ALIAS - len(start)) :].decode(errors="ignore")


def namespaces() -> list[str]:
    """The network namespaces that `ip netns` lists."""
    return [entry["name"] for entry in json.loads(call(["ip", "-json", "netns", "list"]) or "[]")]


def configured() -> list[str]:
    """The names of the namespaces that have a configuration, whether they exist or not."""
    try:
        return sorted(path.name for path in CONFIGURATIONS.iterdir())
    except OSError:
        return []


def uplinks() -> dict[str, str]:
    """The alias of each interface of this machine that may be an uplink, by name."""
    links = json.loads(call(["ip", "-json", "link", "show"]))
    return {entry["ifname"]: entry.get("ifalias", "") for entry in links if entry["ifname"].startswith("hv")}


def remove(prefix: str) -> list[str]:
    """Kill what runs in the namespaces `prefix...`, and remove them and their uplink.

    Returns their names.
    """
    interrupts.disable_interrupts()
    # The switch comes last: its removal removes the uplink, whose alias names the owning run.
    names = sorted((name for name in namespaces() if name.startswith(prefix)), key=lambda name: name.endswith(SWITCH))
    for name in names:
        with suppress(RequestError):
            for pid in call(["ip", "netns", "pids", name]).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
    for name in configured():
        if name.startswith(prefix):
            shutil.rmtree(CONFIGURATIONS / name, ignore_errors=True)
    for name in names:
        with suppress(RequestError):
            call(["ip", "netns", "del", name])
    # The kernel removes the uplink with the switch, but some time later.
    with suppress(RequestError):
        call(["ip", "link", "del", "dev", uplink_name(prefix)])
    return names


def labels() -> dict[str, RunLabel]:
    """The owner of each run's namespaces, by the start of their names.

    The label has no controller if the uplink is missing.
    """
    names = [*namespaces(), *configured()]
    starts = {name.rpartition("-")[0] + "-" for name in names if re.match(rf"{PREFIX}-[0-9a-f]{{8}}-", name)}
    aliases = uplinks()
    read = {start: aliases.get(uplink_name(start), "").split(" ", 1) for start in starts}
    return {start: RunLabel.read(dict(word.partition("=")[::2] for word in words)) for start, words in read.items()}


def remove_leftovers(remove_them: bool = True) -> list[tuple[RunLabel, str]]:
    """Find and, with `remove_them`, remove the networks whose controllers no longer run.

    Returns the label and the start of the namespaces' names.
    """
    with machine_lock(LOCK):
        gone = {(start, label) for start, label in labels().items() if not label.is_live}
        # Nobody else removes what a dead controller created, so what is still there is left over.
        found = [(label, start) for start, label in labels().items() if (start, label) in gone]
        for _, start in found if remove_them else []:
            remove(start)
    return found


DEFAULT_NODES = 2
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
# Each node has its own host name, by which launchers and libraries distinguish nodes. The words
# after `sh -c` are "$0" and "$@".
IN_NAMESPACE = ("unshare", "--uts", "/bin/sh", "-c", 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"')


class NetworkNamespaces(Placement):
    name = "netns"
    help = "network namespaces that emulate nodes"
    takes = frozenset({"nodes", "link"})
    default_nodes = DEFAULT_NODES

    def readiness(self) -> str:
        found = [require(program, package, "--placement netns") for program, package in PROGRAMS.items()]
        if os.geteuid() != 0:
            raise RequestError(
                "--placement netns needs root to create network namespaces: use sudo, or --placement docker:rank"
            )
        return f"root, {', '.join(found)}"

    def check(self, options: PlacementOptions, np: int) -> None:
        self.readiness()
        wanted = options.nodes or DEFAULT_NODES
        if wanted > MOST_NODES:
            raise RequestError(f"--nodes {wanted}: at most {MOST_NODES} network namespaces are supported")
        if options.nodes and options.nodes > np:
            raise RequestError(
                f"--nodes {options.nodes} for -np {np}: each node needs a rank; use fewer nodes or more ranks"
            )
        if options.link is not None:
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
