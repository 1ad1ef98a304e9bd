"""Whether the MPI library of a job has the functions with large counts of MPI 4 (MPI_Bcast_c and so
on).
"""

from pathlib import Path

from hvscale.core.run_folder import Library
from hvscale.launch import flavours
from hvscale.launch.mpi import horovod_build, mpi_library

# As every library that has one of them has them all; under the name that a profiler calls it by.
ONE_OF_THEM = "PMPI_Bcast_c"


def has_large_counts(command: list[str], environment: dict[str, str], library: Library) -> bool:
    """Asked of the library itself, loaded in a process of its own. False where there is none, or it
    is not found.
    """
    candidates = mpi_files(command, environment, library)
    return bool(candidates) and mpi_library.has_function(ONE_OF_THEM, candidates, environment)


def mpi_files(command: list[str], environment: dict[str, str], library: Library) -> list[str]:
    """The file that the command's Horovod is linked to; else the one that the launcher brings; else
    names for the dynamic linker, best first.
    """
    soname = flavours.get(library.flavour).soname
    if soname is None:
        return []
    horovod = horovod_build.horovod_library(command, environment)
    linked = horovod_build.linked_mpi(horovod, environment) if horovod else None
    found = linked[1] if linked else None
    if found is None:
        found = mpi_library.beside(Path(library.launcher or ""), soname)
    return (
        [str(found)] if found else [soname, *(name for name, usual in horovod_build.SONAMES.items() if usual == soname)]
    )
