"""A private network for a run's containers: a bridge, or an overlay network of Docker Swarm."""

import ipaddress
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import psutil

from hvscale.core.errors import RequestError
from hvscale.launch.cleanup.ownership import RUN, RunLabel, machine_lock
from hvscale.launch.containers import engine

# The bridge between containers of an overlay network and this machine. Docker creates it with the
# first swarm, and does not remove it.
GATEWAY = "docker_gwbridge"
MADE_GATEWAY = "hvscale.made-gateway"
REMOVAL_SECONDS = 15
# Held while a run joins the swarm and creates its network, and while it checks whether it is the
# last run and leaves.
SWARM_LOCK = "swarm"
CLEANUP = "run `hvscale cleanup` to remove what a killed run left"


@contextmanager
def network(client: Any, label: RunLabel, kind: str, problems: list[str]) -> Iterator[Any]:
    """Context: the run's network.

    Raises RequestError if a network of that name exists, or Docker cannot create it. On exit the
    network and a swarm created for it are removed, or `problems` names what is left.
    """
    name = label.name("network")
    if any(other.name == name for other in client.networks.list(names=[name])):
        raise RequestError(f"Docker network {name} already exists: {CLEANUP}, or `docker network rm {name}`")
    try:
        made = engine.create_tracked(lambda: create(client, label, kind))
        made.reload()
        yield made
    finally:
        engine.remove_all(client, label, problems, lambda: remove_own(client, label, kind))


def create(client: Any, label: RunLabel, kind: str) -> Any:
    """Create the run's network, for an overlay network in a swarm."""
    is_overlay = kind == "overlay"
    with machine_lock(SWARM_LOCK) if is_overlay else nullcontext():
        if is_overlay:
            join_swarm(client, label)
        return client.networks.create(
            label.name("network"), driver=kind, labels=label.labels, attachable=is_overlay, check_duplicate=True
        )


def remove_own(client: Any, label: RunLabel, kind: str) -> None:
    """Remove the run's networks, found by label: an interrupted start may not know what
    it created.
    """
    for made in client.networks.list(filters={"label": label.filters}):
        remove(made)
    if kind == "overlay":
        leave_swarm(client, label.name("network"))


def remove(made: Any) -> None:
    """Remove a network and wait until it is gone: Docker removes an overlay network
    asynchronously.
    """
    import docker

    deadline = time.monotonic() + REMOVAL_SECONDS
    with suppress(docker.errors.NotFound):
        made.remove()
        while time.monotonic() < deadline:
            made.reload()
            time.sleep(0.05)


def join_swarm(client: Any, label: RunLabel) -> None:
    """Create a labelled swarm of this machine only, unless it is in a swarm already."""
    if client.info()["Swarm"]["LocalNodeState"] == "active":
        return
    import docker

    had_gateway = bool(client.networks.list(names=[GATEWAY]))
    try:
        client.swarm.init(
            advertise_addr="127.0.0.1",
            listen_addr="127.0.0.1",
            labels={**label.labels, MADE_GATEWAY: "no" if had_gateway else "yes"},
        )
    except docker.errors.NotFound as error:
        raise RequestError(
            f"--network overlay needs Docker Swarm, and the daemon at {engine.address()} has none (Podman has no Swarm): "
            "leave it out to use a bridge"
        ) from error


def swarm_label(client: Any) -> RunLabel | None:
    """The label of this machine's swarm; None if there is none or hvscale did not create it."""
    swarm = client.info()["Swarm"]
    if swarm["LocalNodeState"] != "active" or not swarm.get("ControlAvailable"):
        return None
    client.swarm.reload()
    labels = client.swarm.attrs["Spec"].get("Labels") or {}
    return RunLabel.read(labels) if RUN in labels else None


def leave_swarm(client: Any, own: str = "") -> None:
    """Leave and remove a swarm that hvscale created, with its gateway.

    Does nothing while a network other than `own` is in it.
    """
    with machine_lock(SWARM_LOCK):
        if swarm_label(client) is None or is_swarm_in_use(client, own):
            return
        made_gateway = client.swarm.attrs["Spec"]["Labels"].get(MADE_GATEWAY) == "yes"
        client.swarm.leave(force=True)
        for gateway in client.networks.list(names=[GATEWAY]) if made_gateway else []:
            remove(gateway)


def is_swarm_in_use(client: Any, own: str = "") -> bool:
    """Whether a live run has a network other than `own` in the swarm."""
    return any(
        one.name != own and RunLabel.read(one.attrs["Labels"]).is_live
        for one in client.networks.list(filters={"label": RUN, "driver": "overlay"})
    )


def abandoned_swarm(client: Any) -> RunLabel | None:
    """The label of this machine's swarm, if its run has ended and no live run uses it."""
    with machine_lock(SWARM_LOCK):
        label = swarm_label(client)
        return label if label is not None and not label.is_live and not is_swarm_in_use(client) else None


def subnet(made: Any) -> str:
    """The containers' addresses (CIDR); an overlay network has them once a container is in it."""
    made.reload()
    return str(made.attrs["IPAM"]["Config"][0]["Subnet"])


def controller_address(client: Any, made: Any) -> str:
    """This machine's address through which containers reach it.

    It is the bridge's, except for a rootless daemon: its bridges are in a network namespace that
    only the containers share, and forwards their connections to this machine's other addresses.
    """
    if engine.is_rootless(client):
        return own_address()
    bridge = made if made.attrs["Driver"] == "bridge" else client.networks.list(names=[GATEWAY])[0]
    bridge.reload()
    configuration = bridge.attrs["IPAM"]["Config"][0]
    return str(configuration.get("Gateway") or ipaddress.ip_network(configuration["Subnet"])[1])


def own_address() -> str:
    """An IPv4 address of this machine. Raises RequestError if it has only the loopback's."""
    addresses = (
        address.address
        for name, found in psutil.net_if_addrs().items()
        if psutil.net_if_stats()[name].isup
        for address in found
        if address.family == socket.AF_INET
    )
    own = next((address for address in addresses if not ipaddress.ip_address(address).is_loopback), None)
    if own is None:
        raise RequestError(
            "containers of a rootless daemon reach this machine only through a network interface, and none is up: "
            "connect the machine, or use --placement netns or a daemon of root"
        )
    return own


def abandoned_networks(client: Any) -> list[Any]:
    """Networks whose controllers no longer run."""
    found = [
        network
        for network in client.networks.list(filters={"label": RUN})
        if not RunLabel.read(network.attrs["Labels"]).is_live
    ]
    return [network for network in found if engine.still_exists(network)]
