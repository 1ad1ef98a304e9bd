"""MVAPICH2 2.3 and MVAPICH2-GDR, started by Hydra, or by mpirun_rsh where there is no Hydra. They keep MPICH's ABI."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from hvscale.launch import flavours
from hvscale.launch.flavours import Processes, register
from hvscale.launch.job import Job
from hvscale.launch.mpi import hydra
from hvscale.launch.mpi.launcher import start_launcher

RSH_LAUNCHER = "mpirun_rsh"
# Each rank's threads need all cores, not the one that MVAPICH2 would bind them to.
UNBOUND = {"MV2_ENABLE_AFFINITY": "0"}


class MVAPICH2:
    name = "mvapich2"
    soname = hydra.SONAME

    def find(self, environment: dict[str, str]) -> Library:
        for name in (hydra.LAUNCHER, RSH_LAUNCHER):
            for launcher in hydra.launchers(environment, name):
                version = self.version_in(launcher.text)
                if version is not None:
                    device = device_in(launcher.text)
                    return Library(
                        flavour=self.name,
                        version=version,
                        launcher=str(launcher.path),
                        transport=device,
                        transports=[device] if device else [],
                    )
        raise RequestError(
            f"no MVAPICH2 in PATH (looked for {hydra.LAUNCHER} and {RSH_LAUNCHER} with mpiname beside them): put your "
            "MVAPICH2's bin folder into PATH"
        )

    def transports(self, library: Library, environment: dict[str, str]) -> list[str]:
        return library.transports

    def version_in(self, text: str) -> str | None:
        """`2.3.7`, or `2.3.7-GDR`: mpiname's first line, or what MPI_Get_library_version says."""
        match = re.search(r"^\s*MVAPICH2(-GDR)?\s+(?:Version\s*:\s*)?(\d[\w.]*)", text, re.MULTILINE)
        return f"{match[2]}{match[1] or ''}" if match else None

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        return {**UNBOUND, **hydra.with_own_library(environment, Path(library.launcher or ""))}

    def split_devices_variable(self, library: Library) -> str | None:
        """The GDR release alone keeps a list of devices of its own."""
        return "MV2_VISIBLE_DEVICES" if library.version.endswith("-GDR") else None

    def other_release(self, file: Path | None, library: Library) -> str | None:
        return flavours.other_flavour(self, file, library)

    @contextmanager
    def start(self, job: Job, rank_program: list[str], library: Library) -> Iterator[Processes]:
        yield [
            start_launcher(arguments(job, rank_program, library), {**hydra.defaults(job), **job.environment}, job.run)
        ]


def device_in(text: str) -> str:
    """`ch3:mrail` and the like, which the build decides; empty when it is not said."""
    match = re.search(r"\bch\d:[\w:.-]+", text)
    return match[0] if match else ""


def arguments(job: Job, rank_program: list[str], library: Library) -> list[str]:
    """Hydra's command line, or mpirun_rsh's, which wants a host for each rank and is told to pass its environment on."""
    launcher = Path(library.launcher or RSH_LAUNCHER)
    if launcher.name != RSH_LAUNCHER:
        return hydra.arguments(job, rank_program, library)
    if not job.nodes.are_here:
        raise RequestError(f"{launcher} starts ranks on this machine only: put MVAPICH2's mpiexec.hydra into PATH")
    return [str(launcher), "-export-all", "-np", str(job.np), *["localhost"] * job.np, *rank_program]


register(MVAPICH2())
