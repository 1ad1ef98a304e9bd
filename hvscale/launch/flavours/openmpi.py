"""Open MPI 4 and 5, started by their mpirun."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.host import available_cores
from hvscale.core.run_folder import Library
from hvscale.launch.flavours import Processes, register
from hvscale.launch.job import Job
from hvscale.launch.mpi import loopback
from hvscale.launch.mpi.launcher import start_launcher
from hvscale.launch.mpi.mpi_library import for_mpi4py, library_version, told_by
from hvscale.launch.mpi.transport import LIBRARY_DECIDES

PML = "OMPI_MCA_pml"
# What a pml component is called that carries messages for others only.
NOT_A_TRANSPORT = ("monitoring", "v")
# The only word of a binding policy that its launcher heeds beside --map-by is --bind-to.
BINDING = "PRTE_MCA_hwloc_default_binding_policy"
# Both releases refuse root unless both are set: a container's only user is often root.
ROOT_ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class OpenMPI:
    name = "openmpi"
    soname = "libmpi.so.40"

    def find(self, environment: dict[str, str]) -> Library:
        mpirun = shutil.which("mpirun", path=environment.get("PATH", os.defpath))
        if mpirun is None:
            raise RequestError("no mpirun in PATH: run `make setup`, or put your Open MPI's bin folder into PATH")
        try:
            banner = subprocess.run(
                [mpirun, "--version"], env=environment, capture_output=True, text=True, timeout=30
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise RequestError(f"{mpirun} does not start ({error}): reinstall Open MPI") from error
        match = re.search(r"\(Open MPI\)\s+(\d+)\.(\S+)", banner)
        if match is None:
            first = (banner.splitlines() or ["nothing"])[0]
            raise RequestError(
                f"{mpirun} is not Open MPI's (it says: {first}): put Open MPI's bin folder first in PATH"
            )
        if int(match[1]) < 4:
            raise RequestError(f"{mpirun} is Open MPI {match[1]}.{match[2]}: 4 or later is needed")
        return Library(
            flavour=self.name,
            version=f"{match[1]}.{match[2]}",
            launcher=mpirun,
            transport=environment.get(PML)
            or LIBRARY_DECIDES,  # ucx or cm where they find a network that they are made for, else ob1
        )

    def transports(self, library: Library, environment: dict[str, str]) -> list[str]:
        """The pml components, from the ompi_info beside its mpirun; empty where there is none."""
        info = told_by([str(Path(library.launcher or "").parent / "ompi_info"), "--parsable"], environment)
        found = re.findall(r"^mca:pml:(\w+):version", info, re.MULTILINE)
        return [name for name in dict.fromkeys(found) if name not in NOT_A_TRANSPORT]

    def version_in(self, text: str) -> str | None:
        match = re.search(r"Open MPI v(\d[^\s,]*),", text)
        return match[1] if match else None

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        """The pml by name when one was chosen: a rank then fails where it cannot be used, and does not fall back unseen."""
        environment = for_mpi4py(environment, Path(library.launcher or ""), self.soname)
        if library.transport == LIBRARY_DECIDES:
            return environment
        # By itself pml ucx is there for networks of its own only, not for shared memory or TCP.
        anywhere = {f"{PML}_ucx_tls": "any", f"{PML}_ucx_devices": "any"} if library.transport == "ucx" else {}
        return {**anywhere, **environment, PML: library.transport}

    def split_devices_variable(self, library: Library) -> str | None:
        return None

    def other_release(self, file: Path | None, library: Library) -> str | None:
        """Open MPI 4 and 5 share a soname, but a rank of one is not known to the other's mpirun."""
        prefix = Path(library.launcher or "").resolve().parent.parent
        if file is None or prefix in file.resolve().parents:
            return None
        version = self.version_in(library_version(file, {}))
        same = version is None or version.partition(".")[0] == library.version.partition(".")[0]
        return None if same else f"Open MPI {version}"

    @contextmanager
    def start(self, job: Job, rank_program: list[str], library: Library) -> Iterator[Processes]:
        environment = {**defaults(job, library), **job.environment, **(ROOT_ALLOWED if os.geteuid() == 0 else {})}
        words = arguments(job, rank_program, library)
        yield [start_launcher(words, loopback.launcher_environment(job, environment), job.run)]


def arguments(job: Job, rank_program: list[str], library: Library) -> list[str]:
    """mpirun's command line: unbound ranks, because the framework's threads need room, and as many as asked for on any number of cores.

    A binding policy in the job's environment is obeyed.

    Open MPI 5 (PRRTE) and 4 (ORTE) agree on these spellings; 4 would stop at np over slots without its own --oversubscribe.
    """
    launcher = library.launcher or "mpirun"
    return [launcher, "-np", str(job.np), *placing(job.environment, library), *over_nodes(job, library), *rank_program]


def placing(environment: Mapping[str, str], library: Library) -> list[str]:
    """The words that bind the ranks, or leave them unbound, and let them be more than the cores."""
    several = (
        ["--map-by", "slot:OVERSUBSCRIBE"]
        if library.version.startswith("5")
        else ["--map-by", "slot", "--oversubscribe"]
    )
    return ["--bind-to", environment.get(BINDING, "none"), *several]


def over_nodes(job: Job, library: Library) -> list[str]:
    """The words that spread the ranks over the job's nodes, each of which gets the job's environment through mpirun."""
    if job.nodes.are_here:
        return []
    agent = str(job.nodes.write_agent(job.run))
    # A daemon in a node cannot start another one: it has no agent there. It stays with its agent: srun ends what leaves it.
    parameters = (
        {"plm": "ssh", "plm_ssh_agent": agent, "plm_ssh_no_tree_spawn": "1", "prte_leave_session_attached": "1"}
        if library.version.startswith("5")
        else {"plm": "rsh", "plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": "1", "orte_leave_session_attached": "1"}
    )
    option = "--prtemca" if library.version.startswith("5") else "--mca"
    remote_start = [word for name, value in parameters.items() for word in (option, name, value)]
    named = [word for name in sorted(job.environment) for word in ("-x", name)]
    return ["--host", job.nodes.hosts, *remote_start, *named]


def defaults(job: Job, library: Library) -> dict[str, str]:
    """MCA parameters that follow from where the ranks run; the user's own, given with --env, win."""
    if job.nodes.are_here:
        return loopback.of_open_mpi(job)
    # Nodes with one address would otherwise choose among their machine's other ones, and not know whom a call comes from.
    subnet = f"{job.nodes.nodes[0].address}/32" if job.nodes.share_an_address else job.nodes.subnet
    network = {"OMPI_MCA_btl_tcp_if_include": subnet} if subnet else {}
    # mpirun counts this machine's cores once for each node on it, and its ranks then spin while the one they wait for has no core.
    crowded = (
        {"OMPI_MCA_mpi_yield_when_idle": "true"} if job.nodes.on_this_machine and job.np > available_cores() else {}
    )
    return {**network, **crowded}


register(OpenMPI())
