"""Starts an MPI's own launcher, with its output in the run's launcher.log.

It ends with its controller. On one host, it and its ranks listen on the loopback interface only,
which other hosts cannot reach.
"""

import ctypes
import signal
import subprocess
from collections.abc import Collection, Mapping

from hvscale.core.built_library import built_library, preloaded
from hvscale.core.errors import RequestError
from hvscale.core.files import open_new
from hvscale.launch.job import Job
from hvscale.launch.supervision.init_marker import LIBRARY
from hvscale.launch.supervision.programs import allow_open_files

PR_SET_PDEATHSIG = 1
# The preloaded library binds sockets to the loopback address that MPI would bind to every address.
LOOPBACK_SWITCH = {"HVSCALE_LOOPBACK": "1"}
# Open MPI's and MPICH's launchers need 4 for each rank of their own node, and crash, fail without a
# reason or hang if they have fewer. The fifth is spare.
FILES_PER_RANK = 5


def start_launcher(arguments: list[str], environment: dict[str, str], job: Job) -> "subprocess.Popen[bytes]":
    """Start the launcher in a new session, so that Ctrl-C reaches only the controller.

    No thread may be running in this process yet. Raises RequestError if too few open files are
    allowed.
    """
    allow_open_files(FILES_PER_RANK * max(node.slots for node in job.nodes.nodes))
    libc = ctypes.CDLL(None)

    def end_with_controller() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    with open_new(job.run / "logs" / "launcher.log") as log:
        return subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_controller,
        )


def uses_loopback_only(job: Job, interface_variables: Collection[str] = ()) -> bool:
    """True on one host, unless the user set one of the library's `interface_variables`."""
    return job.nodes.without_agents and not any(name in job.environment for name in interface_variables)


def with_loopback_library(
    job: Job, environment: Mapping[str, str], interface_variables: Collection[str] = ()
) -> dict[str, str]:
    """The launcher's environment, with the loopback library if it is installed.

    The ranks inherit the switch, and have the library anyway.
    """
    if not uses_loopback_only(job, interface_variables):
        return dict(environment)
    try:
        return {**environment, **LOOPBACK_SWITCH, **preloaded(built_library(LIBRARY), environment)}
    except RequestError:
        return dict(environment)
