"""Finds by its label, and removes, what killed controllers left outside their run folders."""

import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.launch.cleanup import shared_memory
from hvscale.launch.cleanup.ownership import RunLabel
from hvscale.launch.containers import engine, networks
from hvscale.launch.placements import netns


class Leftover(BaseModel):
    """One leftover.

    `kind` is container, network, swarm, namespaces, shared memory, session folder or profiles.
    """

    kind: str
    name: str
    run: str


class Cleanup(VersionedDocument):
    schema_: Literal["hvscale/cleanup/1"] = "hvscale/cleanup/1"
    removed: bool
    leftovers: list[Leftover]
    problems: list[str]


def clean_up(remove: bool = True, keep: Collection[str] = ()) -> tuple[list[Leftover], list[str]]:
    """Find what killed runs left and, with `remove`, remove it; live runs are not touched.

    `keep`: runs whose containers are not removed. Returns the leftovers, and a line for each place
    that could not be searched.
    """
    found: list[Leftover] = []
    problems: list[str] = []
    for look in (lambda remove: docker_leftovers(remove, keep), namespace_leftovers, shared_memory_leftovers):
        try:
            found.extend(look(remove))  # keeps those before a failure
        except RequestError as error:
            problems.append(str(error))
    return found, problems


def runs_with_containers() -> list[str]:
    """The killed runs that have containers left; none if the daemon does not answer."""
    if not engine.is_used():
        return []
    try:
        with engine.connection() as client:
            found = [RunLabel.read(container.labels).run for container in engine.abandoned_containers(client)]
    except RequestError:
        return []
    return sorted(set(found))


def docker_leftovers(remove: bool, keep: Collection[str]) -> Iterator[Leftover]:
    """Containers, networks and a swarm.

    Nothing if the daemon is not running, because its containers then do not run either. They are
    found when it runs again.
    """
    if not engine.is_used():
        return
    with engine.connection() as client:
        for container in engine.abandoned_containers(client):
            run = RunLabel.read(container.labels).run
            if run in keep:
                continue
            if remove:
                engine.remove_container(container)
            yield Leftover(kind="container", name=container.name, run=run)
        for network in networks.abandoned_networks(client):
            if remove:
                networks.remove(network)
            yield Leftover(kind="network", name=network.name, run=RunLabel.read(network.attrs["Labels"]).run)
        if swarm := networks.abandoned_swarm(client):
            if remove:
                networks.leave_swarm(client)
            yield Leftover(kind="swarm", name="default", run=swarm.run)


def namespace_leftovers(remove: bool) -> Iterator[Leftover]:
    """Network namespaces; nothing without `ip`, which creates them."""
    if shutil.which("ip") is None:
        return
    for label, prefix in netns.remove_leftovers(remove):
        yield Leftover(kind="namespaces", name=f"{prefix}*", run=label.run)


def shared_memory_leftovers(remove: bool) -> Iterator[Leftover]:
    """Segments and session folders that killed launchers left.

    A segment does not name its run, so those of jobs that hvscale did not start are found too.
    """
    for path in shared_memory.unused(Path(tempfile.gettempdir())):
        kind = "session folder" if path.is_dir() else "shared memory"
        if remove:
            shared_memory.remove(path)
        yield Leftover(kind=kind, name=str(path), run="no living process")
