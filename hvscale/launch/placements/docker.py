"""Docker containers as nodes on a private network, each for one rank or several."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvscale.core.errors import RequestError
from hvscale.core.host import gpus
from hvscale.core.numbers import MOST_BYTES
from hvscale.core.run_folder import RunRecord
from hvscale.launch import flavours
from hvscale.launch.cleanup.ownership import RunLabel
from hvscale.launch.containers import engine, networks
from hvscale.launch.containers.image import DEFAULT_IMAGE, require_image
from hvscale.launch.containers.mounts import volumes
from hvscale.launch.job import Node, Nodes, split_evenly
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements import Placement, PlacementRequest, register
from hvscale.launch.placements._link_shaping import bits_per_second, shaping_command
from hvscale.launch.rank_side import node_probe
from hvscale.launch.supervision import programs

DEFAULT_RANKS_PER_CONTAINER = 2
DEFAULT_SHM_SIZE = "1g"
# Docker's own units.
SIZE = re.compile(r"([0-9]{1,19})([bkmg]?)", re.IGNORECASE)
POWERS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30}
# Variables with folders that a container does not have.
EXCLUDED_VARIABLES = ("TMPDIR", "XDG_RUNTIME_DIR")


class Docker(Placement):
    """Containers; each holds one rank unless `takes_ranks_per_container`."""

    def __init__(self, name: str, help: str, takes_ranks_per_container: bool) -> None:
        self.name, self.help = name, help
        self.takes = frozenset({"link", "network", "shm_size", "cma", "container_gpus", "image", "mount"}) | (
            {"ranks_per_container"} if takes_ranks_per_container else set()
        )

    def readiness(self) -> str:
        return self.ready_with(DEFAULT_IMAGE)

    def ready_with(self, image: str) -> str:
        """Raises RequestError if Docker or the image is missing."""
        engine.command()
        with engine.connection() as client:
            require_image(client, image)
            return f"Docker {client.version()['Version']} at {engine.address()}, image {image}"

    def check(self, options: PlacementOptions, np: int) -> None:
        shm_bytes(DEFAULT_SHM_SIZE if options.shm_size is None else options.shm_size)
        if options.link is not None:
            bits_per_second(options.link)
        self.ready_with(DEFAULT_IMAGE if options.image is None else options.image)

    def slots(self, request: PlacementRequest) -> list[int]:
        """The number of ranks of each container."""
        if "ranks_per_container" not in self.takes:
            return [1] * request.np
        per_container = request.options.ranks_per_container or DEFAULT_RANKS_PER_CONTAINER
        return split_evenly(request.np, -(-request.np // per_container))

    @contextmanager
    def prepare(self, request: PlacementRequest) -> Iterator[Nodes]:
        options, label, slots = request.options, request.label, self.slots(request)
        kind = options.network or "bridge"
        with ExitStack() as stack:
            client = stack.enter_context(engine.connection())
            network = stack.enter_context(networks.network(client, label, kind, request.problems))
            image = require_image(client, options.image or DEFAULT_IMAGE)
            containers = stack.enter_context(running_containers(client, request, image, network.name, slots))
            found = probe_containers(containers)
            nodes = [
                make_node(container, number, count, network.name, seen)
                for container, number, count, seen in zip(containers, range(len(slots)), slots, found, strict=True)
            ]
            if options.link:
                for node in nodes:
                    shape_link(client, image, label, node, options.link)
            yield Nodes(
                tuple(nodes),
                controller=networks.controller_address(client, network),
                subnet=networks.subnet(network),
                settings={
                    "image": image.tags[0] if image.tags else image.id,
                    "image_id": image.id,
                    "network": kind,
                    "link": options.link,
                    "shm_bytes": found[0]["shm_bytes"],
                    "cma_asked": bool(options.cma),
                    "cma": found[0]["cma"],
                    "gpus": container_gpus(options, slots),
                    "docker": client.version()["Version"],
                },
                excluded_variables=EXCLUDED_VARIABLES,
                single_copy=lambda: all(seen["cma"] for seen in found),
                lost=lambda: lost_containers(client, containers),
            )

    def recorded_nodes(self, record: RunRecord) -> Nodes:
        nodes = super().recorded_nodes(record)

        def lost() -> dict[str, str]:
            if found := nodes.lost():
                return found
            with engine.connection() as client:
                names = [node.name for node in nodes.nodes]
                there = {one.name: one for one in client.containers.list(all=True, ignore_removed=True)}
                removed = {name: "its container was removed" for name in names if name not in there}
                return {**removed, **lost_containers(client, [there[name] for name in names if name in there])}

        return replace(nodes, nodes=tuple(replace(node, agent=agent(node.name)) for node in nodes.nodes), lost=lost)


def shm_bytes(size: str) -> int:
    """The size in bytes. Raises RequestError if it is not a size as Docker writes it: 512m, 1g."""
    match = SIZE.fullmatch(size)
    found = int(match[1]) << POWERS[match[2].lower()] if match else 0
    if not 0 < found <= MOST_BYTES:
        raise RequestError(f"--shm-size {size}: not a valid size; write it as 512m or 1g")
    return found


def container_gpus(options: PlacementOptions, slots: list[int]) -> list[list[int]]:
    """The numbers of the GPUs that each container sees.

    Raises RequestError if ranks want GPUs of their own and there are too few.
    """
    there = len(gpus())
    if options.container_gpus == "own":
        if sum(slots) > there:
            raise RequestError(f"--container-gpus own: {sum(slots)} ranks, but {there} GPUs: use all, or fewer ranks")
        starts = [sum(slots[:number]) for number in range(len(slots))]
        return [list(range(start, start + count)) for start, count in zip(starts, slots, strict=True)]
    return [[] if options.container_gpus == "none" else list(range(there))] * len(slots)


@contextmanager
def running_containers(
    client: Any, request: PlacementRequest, image: Any, network: str, slots: list[int]
) -> Iterator[list[Any]]:
    """Context: a running container for each entry of `slots`; on exit they are removed."""
    import docker

    options, label = request.options, request.label
    is_rootless = engine.is_rootless(client)
    devices = container_gpus(options, slots)
    modes = volumes(request.command, request.environment, request.library.launcher, request.run, options.mount or ())
    common = {
        "image": image.id,
        # It runs until the container is removed, and ignores other signals.
        "command": ["sleep", "infinity"],
        "entrypoint": [],
        "labels": label.labels,
        "network": network,
        "working_dir": str(Path.cwd()),
        "volumes": {folder: {"bind": folder, "mode": mode} for folder, mode in modes.items()},
        # Root in a rootless daemon's containers is this user outside.
        "user": "0:0" if is_rootless else f"{os.getuid()}:{os.getgid()}",
        "environment": dict(flavours.FLAVOURS.get(request.library.flavour).root_variables) if is_rootless else {},
        "shm_size": shm_bytes(options.shm_size or DEFAULT_SHM_SIZE),
        "cap_add": ["SYS_PTRACE"] if options.cma else [],
    }

    def create(number: int) -> Any:
        name = label.name(number)
        seen = (
            [docker.types.DeviceRequest(device_ids=[str(gpu) for gpu in devices[number]], capabilities=[["gpu"]])]
            if devices[number]
            else []
        )
        return engine.create_tracked(
            lambda: client.containers.create(**common, name=name, hostname=name, device_requests=seen)
        )

    def start(container: Any) -> Any:
        container.start()
        container.reload()
        return container

    def remove() -> None:
        """Remove by label, because an interrupted start may not know what it created."""
        own = client.containers.list(all=True, filters={"label": label.filters}, ignore_removed=True)
        # Podman removes no container whose network another one uses.
        users = [one for one in own if one.attrs["HostConfig"]["NetworkMode"].startswith("container:")]
        programs.in_parallel(engine.remove_container, users)
        programs.in_parallel(engine.remove_container, [one for one in own if one not in users])

    try:
        yield programs.in_parallel(start, [create(number) for number in range(len(slots))])
    finally:
        engine.remove_all(client, label, request.problems, remove)


def agent(container: str) -> tuple[str, ...]:
    return (*engine.command(), "exec", "--interactive", container)


def probe_containers(containers: list[Any]) -> list[dict[str, Any]]:
    """What the ranks will find in each. Raises RequestError if this Python does not run there."""
    probe = [sys.executable, "-I", "-S", node_probe.__file__]
    results = programs.ask_all(
        [[*agent(container.name), *probe] for container in containers], programs.answer_seconds()
    )
    return [read_probe(one) for one in results]


def read_probe(result: "subprocess.CompletedProcess[str] | None") -> dict[str, Any]:
    if result is None:
        raise RequestError(engine.timeout_message("`docker exec`"))
    if result.returncode:
        message = (result.stderr.strip().splitlines() or ["nothing"])[-1]
        raise RequestError(
            f"{sys.executable} does not run in the image ({message}): it needs the libraries of this machine's "
            "distribution, as in the image of `hvscale image build`"
        )
    try:
        found: dict[str, Any] = json.loads(result.stdout)
    except ValueError as error:
        raise RequestError(
            f"{sys.executable} ran in the image, but its answer was lost: start the job again when the machine is less busy"
        ) from error
    here = ".".join(map(str, sys.version_info[:2]))
    if not found["python"].startswith(f"{here}."):
        raise RequestError(
            f"{sys.executable} is Python {found['python']} in the image, but {here} on this machine: use an image of this distribution"
        )
    return found


def make_node(container: Any, number: int, slots: int, network: str, seen: dict[str, Any]) -> Node:
    address = container.attrs["NetworkSettings"]["Networks"][network]["IPAddress"]
    return Node(
        name=container.name,
        slots=slots,
        address=address,
        interface=seen["interfaces"][address],
        agent=agent(container.name),
    )


def shape_link(client: Any, image: Any, label: RunLabel, node: Node, rate: str) -> None:
    """Limit the container's link to `rate`, from a second container in its network.

    The ranks' own container never has the privilege to change it.
    """
    import docker

    try:
        status, printed = engine.create_tracked(
            lambda: engine.run_to_end(
                client,
                image=image.id,
                command=shaping_command(node.interface, rate),
                entrypoint=[],
                network_mode=f"container:{node.name}",
                cap_add=["NET_ADMIN"],
                labels=label.labels,
            )
        )
    except docker.errors.APIError as error:  # such as: there is no tc
        status, printed = 1, error.explanation or str(error)
    if status:
        raise RequestError(
            f"--link {rate}: {printed or f'tc ended with status {status}'}; the image must contain tc (package iproute2)"
        )


def lost_containers(client: Any, containers: list[Any]) -> dict[str, str]:
    """Why containers that no longer run ended."""
    import docker

    if not engine.answers(client):
        return {container.name: "the Docker daemon no longer answers" for container in containers}
    lost = {}
    for container in containers:
        try:
            container.reload()
            state = container.attrs["State"]
            if not state["Running"]:
                why = "it ran out of memory" if state.get("OOMKilled") else f"it ended with status {state['ExitCode']}"
                lost[container.name] = f"its container was killed ({why})"
        except docker.errors.NotFound:
            lost[container.name] = "its container was removed"
        except Exception:
            lost[container.name] = "the Docker daemon no longer answers"
    return lost


register(Docker("docker:rank", "a container for each rank", takes_ranks_per_container=False))
register(Docker("docker:node", "containers of several ranks", takes_ranks_per_container=True))
