"""Intel MPI 2019 and later, started by its own Hydra. It has MPICH's ABI."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from hvscale.launch.flavours import LIBRARY_DECIDES, Processes, register
from hvscale.launch.job import Job
from hvscale.launch.mpi import hydra
from hvscale.launch.mpi.launcher import start_launcher

FABRICS = "I_MPI_FABRICS"
TRANSPORTS = ["shm:ofi", "ofi", "shm"]
# Each rank's threads need all cores, not their share of them.
UNBOUND = {"I_MPI_PIN": "0"}
# The folders of oneAPI's own libfabric, relative to the installation.
LIBFABRIC_FOLDERS = ("opt/mpi/libfabric/lib", "libfabric/lib")


class IntelMPI(hydra.HydraFlavour):
    name = "intelmpi"
    library_name = "Intel MPI"
    help = "Intel MPI 2019 and later"
    transports_help = "shm:ofi, ofi or shm"
    variable_prefixes = ("I_MPI_",)
    passed_variables = ("I_MPI_ROOT", "FI_PROVIDER_PATH")
    supports_horovodrun = True

    def find(self, environment: dict[str, str]) -> Library:
        for launcher in hydra.launchers(environment):
            version = self.version_in(launcher.text)
            if version is not None:
                return Library(
                    flavour=self.name,
                    version=version,
                    launcher=str(launcher.path),
                    transport=environment.get(FABRICS) or LIBRARY_DECIDES,  # shm on one node, else shm:ofi
                    transports=TRANSPORTS,
                )
        raise RequestError("no Intel MPI in PATH: source its setvars.sh, or add its bin folder to PATH")

    def version_in(self, text: str) -> str | None:
        """From the launcher's banner or MPI_Get_library_version."""
        match = re.search(r"Intel\(R\) MPI Library (?:for .*Version )?(\d[\w.]*)", text)
        return match[1] if match else None

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        adapted = {**UNBOUND, **hydra.with_own_library(environment, Path(library.launcher or ""))}
        if library.transport != LIBRARY_DECIDES:
            adapted[FABRICS] = library.transport
        root = Path(library.launcher or "").resolve().parent.parent
        for folder in (root / name for name in LIBFABRIC_FOLDERS):
            if (folder / "libfabric.so.1").exists():
                adapted["LD_LIBRARY_PATH"] = f"{adapted.get('LD_LIBRARY_PATH', '')}{os.pathsep}{folder}".lstrip(
                    os.pathsep
                )
                adapted.setdefault("FI_PROVIDER_PATH", str(folder / "prov"))
        return adapted

    @contextmanager
    def start(self, job: Job, rank_program: list[str], library: Library) -> Iterator[Processes]:
        yield [
            start_launcher(hydra.arguments(job, rank_program, library), {**hydra.defaults(job), **job.environment}, job)
        ]


register(IntelMPI())
