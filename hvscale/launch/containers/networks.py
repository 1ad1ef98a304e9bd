"""A private network for the containers of a run: a bridge of this machine, or an overlay of Docker
Swarm.
"""

import ipaddress
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from hvscale.core.errors import RequestError
from hvscale.launch.cleanup.ownership import RUN, RunLabel, machine_lock
from hvscale.launch.containers import engine

# The bridge by which containers of an overlay network reach this machine. Docker makes it with the
# first swarm, and does not remove it.
GATEWAY = "docker_gwbridge"
MADE_GATEWAY = "hvscale.made-gateway"
REMOVAL_SECONDS = 15
# Held while a run joins the swarm and makes its network there, and while one asks whether it is the
# last in it and leaves.
SWARM_LOCK = "swarm"
CLEANUP = "`hvscale cleanup` removes what a killed run left"


@contextmanager
def network(client: Any, label: RunLabel, kind: str, problems: list[str]) -> Iterator[Any]:
    """Raises RequestError when a network of the run's name exists, or Docker cannot make it. On
    exit the network and a swarm that was made for it are gone, or `problems` names what stays.
    """
    name = label.name("network")
    if any(other.name == name for other in client.networks.list(names=[name])):
        raise RequestError(
            f"Docker network {name} exists already: {CLEANUP}; `docker network rm {name}` one that it does not know"
        )
    try:
        made = engine.create_tracked(lambda: create(client, label, kind))
        made.reload()
        yield made
    finally:
        engine.remove_all(client, label, problems, lambda: remove_own(client, label, kind))


def create(client: Any, label: RunLabel, kind: str) -> Any:
    """Make the run's network, for an overlay in a swarm."""
    is_overlay = kind == "overlay"
    with machine_lock(SWARM_LOCK) if is_overlay else nullcontext():
        if is_overlay:
            join_swarm(client, label)
        return client.networks.create(
            label.name("network"), driver=kind, labels=label.labels, attachable=is_overlay, check_duplicate=True
        )


def remove_own(client: Any, label: RunLabel, kind: str) -> None:
    """Found by its label: a start that was interrupted may not have learned of what it made."""
    for made in client.networks.list(filters={"label": label.filters}):
        remove(made)
    if kind == "overlay":
        leave_swarm(client, label.name("network"))


def remove(made: Any) -> None:
    """Returns when it is gone: Docker takes an overlay network away only after it has said so."""
    import docker

    deadline = time.monotonic() + REMOVAL_SECONDS
    with suppress(docker.errors.NotFound):
        made.remove()
        while time.monotonic() < deadline:
            made.reload()
            time.sleep(0.05)


def join_swarm(client: Any, label: RunLabel) -> None:
    """Make a swarm of this machine alone, labelled as ours, unless it is in one already."""
    if client.info()["Swarm"]["LocalNodeState"] == "active":
        return
    had_gateway = bool(client.networks.list(names=[GATEWAY]))
    client.swarm.init(
        advertise_addr="127.0.0.1",
        listen_addr="127.0.0.1",
        labels={**label.labels, MADE_GATEWAY: "no" if had_gateway else "yes"},
    )


def swarm_label(client: Any) -> RunLabel | None:
    """The label of the swarm that this machine is in, None where there is no swarm or it is not
    ours.
    """
    swarm = client.info()["Swarm"]
    if swarm["LocalNodeState"] != "active" or not swarm.get("ControlAvailable"):
        return None
    client.swarm.reload()
    labels = client.swarm.attrs["Spec"].get("Labels") or {}
    return RunLabel.read(labels) if RUN in labels else None


def leave_swarm(client: Any, own: str = "") -> None:
    """Leave a swarm that was made by hvscale, with its gateway, unless another run's network than
    `own` is still in it.
    """
    with machine_lock(SWARM_LOCK):
        if swarm_label(client) is None or is_swarm_in_use(client, own):
            return
        made_gateway = client.swarm.attrs["Spec"]["Labels"].get(MADE_GATEWAY) == "yes"
        client.swarm.leave(force=True)
        for gateway in client.networks.list(names=[GATEWAY]) if made_gateway else []:
            remove(gateway)


def is_swarm_in_use(client: Any, own: str = "") -> bool:
    """Whether a living run has another network than `own` in the swarm."""
    return any(
        one.name != own and RunLabel.read(one.attrs["Labels"]).is_live
        for one in client.networks.list(filters={"label": RUN, "driver": "overlay"})
    )


def abandoned_swarm(client: Any) -> RunLabel | None:
    """The label of the swarm that this machine is in, when the run that made it is gone and no
    living run uses it.
    """
    with machine_lock(SWARM_LOCK):
        label = swarm_label(client)
        return label if label is not None and not label.is_live and not is_swarm_in_use(client) else None


def subnet(made: Any) -> str:
    """The addresses of its containers (CIDR). An overlay network has them once a container is in
    it.
    """
    made.reload()
    return str(made.attrs["IPAM"]["Config"][0]["Subnet"])


def controller_address(client: Any, made: Any) -> str:
    """This machine's own address on the bridge that the containers reach it by."""
    bridge = made if made.attrs["Driver"] == "bridge" else client.networks.list(names=[GATEWAY])[0]
    bridge.reload()
    configuration = bridge.attrs["IPAM"]["Config"][0]
    return str(configuration.get("Gateway") or ipaddress.ip_network(configuration["Subnet"])[1])


def abandoned_networks(client: Any) -> list[Any]:
    """Networks whose controllers are gone."""
    found = [
        network
        for network in client.networks.list(filters={"label": RUN})
        if not RunLabel.read(network.attrs["Labels"]).is_live
    ]
    return [network for network in found if engine.still_exists(network)]
