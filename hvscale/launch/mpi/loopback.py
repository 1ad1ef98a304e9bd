"""A job on one host listens on the loopback interface only, where no other host reaches it."""

from collections.abc import Mapping

from hvscale.core.built_library import built_library, preloaded
from hvscale.core.errors import RequestError
from hvscale.launch.job import Job
from hvscale.launch.supervision.init_marker import LIBRARY

# Read by the library that is preloaded: what MPI binds to every address, it binds to the loopback address.
SWITCH = {"HVSCALE_LOOPBACK": "1"}
# Open MPI's ranks connect over the interfaces that are named here, so they must listen there.
OPEN_MPI_INTERFACES = "OMPI_MCA_btl_tcp_if_include"
CHOICES = (OPEN_MPI_INTERFACES, "OMPI_MCA_btl_tcp_if_exclude")


def is_wanted(job: Job) -> bool:
    """On one host, unless the user chose interfaces with --env."""
    return job.nodes.are_here and not any(name in job.environment for name in CHOICES)


def launcher_environment(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    """The launcher's environment, with the library that keeps its listeners to the loopback interface, where it is installed.

    Its ranks inherit the switch, and have the library anyway.
    """
    if not is_wanted(job):
        return dict(environment)
    try:
        return {**environment, **SWITCH, **preloaded(built_library(LIBRARY), environment)}
    except RequestError:
        return dict(environment)


def of_open_mpi(job: Job) -> dict[str, str]:
    """Variables that keep the ranks' TCP connections to the loopback interface; not UCX's, over which a rank reaches one that it spawns."""
    return {OPEN_MPI_INTERFACES: job.nodes.nodes[0].interface} if is_wanted(job) else {}


def of_mpich(job: Job) -> dict[str, str]:
    """The same; libfabric's other providers, and UCX's other transports, stay as they are."""
    if not is_wanted(job):
        return {}
    interface = job.nodes.nodes[0].interface
    # UCX would listen on every interface, and MPICH needs none of its TCP on one host.
    ucx = {} if "UCX_NET_DEVICES" in job.environment else {"UCX_TLS": "^tcp"}
    return {**ucx, "FI_TCP_IFACE": interface, "FI_SOCKETS_IFACE": interface}
