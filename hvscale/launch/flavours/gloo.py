"""Gloo: ranks as plain processes that meet through Horovod's own rendezvous server."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.files import open_new
from hvscale.core.run_folder import Library
from hvscale.launch.flavours import Processes, register
from hvscale.launch.job import Job

TRANSPORT = "tcp"
GLOO_ONLY = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}


class Gloo:
    name = "gloo"
    soname = None

    def find(self, environment: dict[str, str]) -> Library:
        try:
            version = f"inside Horovod {metadata.version('horovod')}"
        except metadata.PackageNotFoundError as error:
            raise RequestError("Horovod is not installed, and Gloo lies inside it: run `make setup`") from error
        return Library(flavour=self.name, version=version, transport=TRANSPORT, transports=[TRANSPORT])

    def transports(self, library: Library, environment: dict[str, str]) -> list[str]:
        return library.transports

    def version_in(self, text: str) -> str | None:
        return None

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        return environment

    def split_devices_variable(self, library: Library) -> str | None:
        return None

    def other_release(self, file: Path | None, library: Library) -> str | None:
        return None

    @contextmanager
    def start(self, job: Job, rank_program: list[str], library: Library) -> Iterator[Processes]:
        # Imported here: they take 0.1 s, and Open MPI needs none of it.
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

        from hvscale.launch.gloo_rendezvous import rendezvous

        nodes = {node.name: node for node in job.nodes.nodes}
        slots = get_host_assignments(parse_hosts(job.nodes.hosts), job.np)
        with rendezvous(job, slots) as variables, open_new(job.run / "logs" / "launcher.log") as log:
            yield [
                node.start(
                    rank_program,
                    {
                        "HOROVOD_GLOO_IFACE": node.interface,
                        **job.environment,
                        **GLOO_ONLY,
                        **variables,
                        **slot_variables(slot),
                    },
                    log,
                )
                for slot in slots
                for node in [nodes[slot.hostname]]
            ]


def slot_variables(slot: object) -> dict[str, str]:
    """What Horovod reads at init() to know its place, from one of its runner's SlotInfo."""
    fields = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname")
    return {f"HOROVOD_{field.upper()}": str(getattr(slot, field)) for field in fields}


register(Gloo())
