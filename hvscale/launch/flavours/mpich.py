"""MPICH 4 and 5, started by Hydra."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from hvscale.launch import flavours
from hvscale.launch.flavours import Processes, register
from hvscale.launch.job import Job
from hvscale.launch.mpi import hydra, loopback, mpi_library, prefixes
from hvscale.launch.mpi.launcher import start_launcher

NETMOD = "MPIR_CVAR_CH4_NETMOD"
SINGLE_COPY = "MPIR_CVAR_CH4_CMA_ENABLE"
OLDEST_RELEASE = 4


class MPICH:
    name = "mpich"
    soname = hydra.SONAME

    def find(self, environment: dict[str, str]) -> Library:
        others = []
        for launcher in hydra.launchers(environment):
            version = self.version_in(launcher.text)
            if version is None:
                others.append(f"{launcher.path} is {flavours.described(launcher.text)}")
            elif int(version.partition(".")[0]) < OLDEST_RELEASE:
                others.append(f"{launcher.path} is MPICH {version}: {OLDEST_RELEASE} or later is needed")
            else:
                transports = transports_in(launcher.text)
                chosen = environment.get(NETMOD) or (transports[0] if transports else "")
                return Library(
                    flavour=self.name,
                    version=version,
                    launcher=str(launcher.path),
                    transport=chosen,
                    transports=transports,
                )
        found = f" ({'; '.join(others)})" if others else ""
        raise RequestError(
            f"no MPICH in PATH{found}: run `make setup MPI=mpich`, or put your MPICH's bin folder into PATH"
        )

    def transports(self, library: Library, environment: dict[str, str]) -> list[str]:
        return library.transports

    def version_in(self, text: str) -> str | None:
        match = re.search(r"^\s*MPICH Version:\s*(\d\S*)", text, re.MULTILINE)
        return match[1] if match else None

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        """The netmod by name: MPICH takes the first one that it was built with when nothing is said.

        The programs of hvscale's environments find their own MPICH by themselves; of another one the library is put first.
        """
        launcher = Path(library.launcher or "")
        if launcher.parent.parent in prefixes.side_by_side():
            environment = mpi_library.for_mpi4py(environment, launcher, self.soname)
        else:
            environment = hydra.with_own_library(environment, launcher)
        return {**environment, NETMOD: library.transport} if library.transport in library.transports else environment

    def split_devices_variable(self, library: Library) -> str | None:
        return None

    def other_release(self, file: Path | None, library: Library) -> str | None:
        """Releases of MPICH find each other through PMI; another flavour with its soname does not count as one."""
        return flavours.other_flavour(self, file, library)

    @contextmanager
    def start(self, job: Job, rank_program: list[str], library: Library) -> Iterator[Processes]:
        environment = {**hydra.defaults(job), **defaults(job), **loopback.of_mpich(job), **job.environment}
        launcher, *words = hydra.arguments(job, rank_program, library)
        # Its proxy would look for it at the address of the host's name.
        words = ["-localhost", job.nodes.controller, *words] if loopback.is_wanted(job) else words
        yield [start_launcher([launcher, *words], loopback.launcher_environment(job, environment), job.run)]


def defaults(job: Job) -> dict[str, str]:
    """MPICH does not look whether it may read another rank's memory before it does: where it may not, as in most containers, the job would abort."""
    return {} if job.nodes.single_copy() else {SINGLE_COPY: "0"}


def transports_in(text: str) -> list[str]:
    """The netmods of a ch4 device, the default one first, from what `mpichversion` prints; none for ch3, which leaves no choice."""
    match = re.search(r"^\s*MPICH Device:\s*ch4:(.+)$", text, re.MULTILINE)
    return re.split(r"[\s,]+", match[1].strip()) if match else []


register(MPICH())
