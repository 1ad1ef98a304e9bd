"""Hydra, the process manager of MPICH, MVAPICH2 and Intel MPI: its command line, and
whose it is.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hvscale.core.run_folder import Library
from hvscale.launch.flavours import CommandParts, Flavour, RankVariables
from hvscale.launch.job import Job
from hvscale.launch.mpi import mpi_library
from hvscale.launch.mpi.mpi_library import program_output

# Of MPICH's ABI.
SONAME = "libmpi.so.12"
LAUNCHER = "mpiexec.hydra"
# Programs beside the launcher that print their library's name. MVAPICH2 has both, its own first.
MPINAME = ("mpiname", "-a")
VERSION_PROGRAMS = (MPINAME, ("mpichversion",))
BINDING = "HYDRA_BINDING"


class HydraFlavour(Flavour):
    """The common part of the flavours with MPICH's ABI."""

    rank_variables: ClassVar[tuple[RankVariables, ...]] = (
        RankVariables("a launcher of the MPICH family", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", set_by_slurm=True),
    )
    soname = SONAME
    setup_command = "make setup MPI=mpich"
    binding_variable = BINDING

    def command_line(
        self, np: int, command: list[str], variables: Mapping[str, str], library: Library
    ) -> CommandParts | None:
        """The mpiexec.hydra command; the binding is one of its options."""
        settings = [["-genv", name, value] for name, value in variables.items() if name != BINDING]
        binding = ["-bind-to", variables[BINDING]] if variables.get(BINDING) else []
        return [[library.launcher or LAUNCHER, "-np", str(np), *binding], *settings, command]


@dataclass(frozen=True)
class Launcher:
    """A launcher in PATH, with the version text of the launcher or of a program beside it."""

    path: Path
    text: str


def launchers(environment: Mapping[str, str], name: str = LAUNCHER) -> Iterator[Launcher]:
    """Every launcher of that name in PATH, in order.

    Another MPI of this ABI may come before the requested one.
    """
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    for folder in dict.fromkeys(folders):
        path = Path(folder, name).absolute()
        if not os.access(path, os.X_OK) or path.is_dir():
            continue
        yield Launcher(path, version_text(path, environment))


def version_text(launcher: Path, environment: Mapping[str, str]) -> str:
    """The best description of the library.

    That is the text of the library in the launcher's own prefix, otherwise that of a program beside
    the launcher, otherwise the launcher's banner, in which MPICH and MVAPICH2 look alike.
    """
    library = mpi_library.library_beside(launcher, SONAME)
    # The library's dependencies and MPICH 5's program must not find another flavour's library.
    own_environment = own_library_first(dict(environment), launcher)
    text = mpi_library.library_version(library, own_environment) if library else ""
    texts = (program_text(launcher, command, own_environment) for command in VERSION_PROGRAMS)
    return text or next(filter(None, texts), "") or program_output([str(launcher), "--version"], environment)


def program_text(launcher: Path, command: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """What a program beside the launcher prints; empty without it."""
    name, *arguments = command
    return program_output([str(launcher.resolve().parent / name), *arguments], environment)


def own_library_first(environment: dict[str, str], launcher: Path) -> dict[str, str]:
    """The environment with the launcher's own libmpi first.

    For programs built on another MPI of the same ABI.
    """
    library = mpi_library.library_beside(launcher, SONAME)
    return environment if library is None else mpi_library.library_folder_first(environment, library.parent)


def with_own_library(environment: dict[str, str], launcher: Path) -> dict[str, str]:
    """The environment in which Horovod and mpi4py run on the launcher's own library.

    They may be built on any MPI of this ABI.
    """
    return mpi_library.for_mpi4py(own_library_first(environment, launcher), launcher, SONAME)


def arguments(job: Job, rank_program: list[str], library: Library) -> list[str]:
    """The command line of the launcher.

    Hydra starts any number of ranks on any number of cores. It passes its own environment, which is
    the job's, to the ranks.
    """
    return [library.launcher or LAUNCHER, *node_options(job), "-np", str(job.np), *rank_program]


def node_options(job: Job) -> list[str]:
    """The options that spread the ranks over the job's nodes.

    Hydra's proxies connect back to the controller's address.
    """
    if job.nodes.without_agents:
        return []
    agent = str(job.nodes.write_agent(job.run))
    return ["-hosts", job.nodes.hosts, "-launcher", "ssh", "-launcher-exec", agent, "-localhost", job.nodes.controller]


def defaults(job: Job) -> dict[str, str]:
    """Variables that follow from the ranks' nodes; the user's values from --env take precedence.

    Nodes on one machine would otherwise communicate through its memory: UCX looks at the kernel,
    not at the host's name.
    """
    if job.nodes.without_agents or not job.nodes.on_this_machine or job.nodes.share_an_address:
        return {}
    interface = job.nodes.nodes[0].interface
    return {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": interface, "FI_PROVIDER": "tcp", "FI_TCP_IFACE": interface}
