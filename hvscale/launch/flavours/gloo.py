"""Gloo: ranks are plain processes that find each other through Horovod's rendezvous server."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from hvscale.core.errors import RequestError
from hvscale.core.files import open_new
from hvscale.core.run_folder import Library
from hvscale.launch.flavours import Flavour, Processes, RankVariables, register
from hvscale.launch.job import Job

TRANSPORT = "tcp"
# In each of Horovod's three groups, a rank has two sockets for every other rank (counted in /proc).
SOCKETS_PER_RANK = 2
# The open files that most systems allow a process, and those left to the program itself.
USUAL_FILES, FILES_OF_A_PROGRAM = 1024, 768
# $0: the open files that a rank needs.
WITH_OPEN_FILES = """\
allowed=$(ulimit -S -n)
if [ "$allowed" != unlimited ] && [ "$allowed" -lt "$0" ] && ! ulimit -S -n "$0" 2>/dev/null; then
    echo "hvscale: a rank of this job over Gloo needs $0 open files, and the hard limit is $(ulimit -H -n)" \
        "(ulimit -H -n): use fewer ranks, or have an administrator raise it (nofile in limits.conf)" >&2
    exit 1
fi
exec "$@"
"""
GLOO_ONLY = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}


class Gloo(Flavour):
    name = "gloo"
    library_name = "Gloo"
    help = "no MPI at all"
    rank_variables = (RankVariables("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),)
    variable_prefixes = ("GLOO_",)
    allreduce_algorithm = "ring"  # gloo/allreduce.cc, because Horovod does not choose one
    horovod_controller = "gloo"
    supports_horovodrun = True
    reduce_scatter_in_horovod = False

    def find(self, environment: dict[str, str]) -> Library:
        try:
            version = f"inside Horovod {metadata.version('horovod')}"
        except metadata.PackageNotFoundError as error:
            raise RequestError("Gloo is part of Horovod, which is not installed: run `make setup`") from error
        return Library(flavour=self.name, version=version, transport=TRANSPORT, transports=[TRANSPORT], has_mpi=False)

    @contextmanager
    def start(self, job: Job, rank_program: list[str], library: Library) -> Iterator[Processes]:
        # Imported here: it takes 0.1 s, and only a start needs it.
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

        from hvscale.launch.flavours._gloo_rendezvous import rendezvous

        check_addresses(job)
        nodes = {node.name: node for node in job.nodes.nodes}
        slots = get_host_assignments(parse_hosts(job.nodes.hosts), job.np)
        with rendezvous(job, slots) as variables, open_new(job.run / "logs" / "launcher.log") as log:
            yield [
                node.start(
                    with_open_files(rank_program, sockets_of(slot)),
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


def check_addresses(job: Job) -> None:
    """Raises RequestError if a node is reached by IPv6, which Horovod's server does not serve."""
    for node in job.nodes.nodes:
        if ":" in node.address:
            raise RequestError(
                f"--mpi gloo: {node.name} answers at the IPv6 address {node.address}, and Horovod's rendezvous uses IPv4: "
                "set HVSCALE_SSH='ssh -4', or name the hosts by their IPv4 addresses"
            )


def sockets_of(slot: object) -> int:
    """A rank's sockets in the groups of all ranks, of its node, and of one rank of each node."""
    groups = (int(getattr(slot, field)) for field in ("size", "local_size", "cross_size"))
    return SOCKETS_PER_RANK * sum(size - 1 for size in groups)


def with_open_files(program: list[str], sockets: int) -> list[str]:
    """A program that raises its limit of open files first, if the usual one may not suffice."""
    needed = sockets + FILES_OF_A_PROGRAM
    return program if needed <= USUAL_FILES else ["sh", "-c", WITH_OPEN_FILES, str(needed), *program]


def slot_variables(slot: object) -> dict[str, str]:
    """The variables that give hvd.init() a rank's place.

    `slot` is a SlotInfo of Horovod's runner.
    """
    fields = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname")
    return {f"HOROVOD_{field.upper()}": str(getattr(slot, field)) for field in fields}


register(Gloo())
