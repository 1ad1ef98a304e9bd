"""Asks an installed MPI library for its transport, GPU support and large-count functions."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvscale.core.run_folder import Library
from hvscale.launch import flavours
from hvscale.launch.flavours import FLAVOURS
from hvscale.launch.mpi import horovod_build, mpi_library

# These C functions of the standard have the same signature in every ABI. Open MPI and MPICH have
# the last one, and MPICH only after MPI_Init.
START_ALONE = """
import ctypes, sys
mpi = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
query = getattr(mpi, "MPIX_Query_cuda_support", None)
print("cuda", "unknown" if query is None else bool(query()), flush=True)
mpi.MPI_Finalize()
"""
PROBE_SECONDS = 60
# Open MPI 5 leaves the file of its shared memory behind if a process starts alone, and sleeps for a
# second when it closes btl/ofi.
WITHOUT_COMPONENTS = {"OMPI_MCA_btl": "^sm,ofi"}


@dataclass(frozen=True)
class ProbeResult:
    """What a library reported when it was started alone.

    `problem`: why it did not start, or empty. `transport`: empty if the library does not report it.
    """

    transport: str = ""
    cuda_aware: bool = False
    ucx_with_cuda: bool | None = None  # None: it has no UCX
    problem: str = ""


def probe(library: Path, environment: Mapping[str, str] = os.environ) -> ProbeResult:
    """Load libmpi in a separate process, and start and finish MPI there."""
    command = [sys.executable, "-I", "-S", "-c", START_ALONE, str(library)]
    known = FLAVOURS.all().values()
    # Each library ignores the others' variables.
    reporting = {name: value for flavour in known for name, value in flavour.report_variables.items()}
    try:
        result = subprocess.run(
            command,
            env={**WITHOUT_COMPONENTS, **environment, **reporting},
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return ProbeResult(problem=f"it did not start within {PROBE_SECONDS} s")
    output = result.stdout + result.stderr
    if result.returncode != 0:
        return ProbeResult(
            problem=(result.stderr.strip().splitlines() or [f"it ended with status {result.returncode}"])[-1]
        )
    patterns = [flavour.transport_pattern for flavour in known if flavour.transport_pattern is not None]
    chosen = next((match[1].lower() for pattern in patterns if (match := pattern.search(output))), "")
    return ProbeResult(transport=chosen, cuda_aware="cuda True" in output, ucx_with_cuda=ucx_with_cuda(library))


def ucx_with_cuda(library: Path) -> bool | None:
    """Whether the UCX that libmpi finds has its CUDA module; None if it finds no UCX."""
    listed = subprocess.run(["ldd", library], capture_output=True, text=True).stdout
    found = re.search(r"libuct\.so\.\d+ => (\S+)", listed)
    folder = Path(found[1]).parent if found else next(library.parent.glob("*/libuct.so.0"), library).parent
    if not any(folder.glob("libuct.so*")):
        return None
    return any(folder.glob("ucx/libuct_cuda.so*"))


# A library that has one of them has all. The name is the one that a profiler calls.
ONE_OF_THEM = "PMPI_Bcast_c"


def has_large_counts(command: list[str], environment: dict[str, str], library: Library) -> bool:
    """Whether the job's MPI library has MPI 4's large-count functions (MPI_Bcast_c and so on).

    A separate process loads the library. False if there is none or it is not found.
    """
    candidates = mpi_files(command, environment, library)
    return bool(candidates) and mpi_library.has_function(ONE_OF_THEM, candidates, environment)


def mpi_files(command: list[str], environment: dict[str, str], library: Library) -> list[str]:
    """The MPI library's file, or names for the dynamic linker, best first.

    The file is that of the command's Horovod, otherwise the launcher's own.
    """
    soname = flavours.get(library.flavour).soname
    if soname is None:
        return []
    horovod = horovod_build.horovod_library(command, environment)
    linked = horovod_build.linked_mpi(horovod, environment) if horovod else None
    found = linked[1] if linked else None
    if found is None:
        found = mpi_library.library_beside(Path(library.launcher or ""), soname)
    return [str(found)] if found else mpi_library.names_of(soname)
