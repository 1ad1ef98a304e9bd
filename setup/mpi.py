"""The MPI that Horovod is built against, one for each ABI: the locked wheel inside the environment,
or the site's own.
"""

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

    `library_folders` say where libmpi is in the dynamic linker's words: $ORIGIN is the folder of
    Horovod's own library.
    """

    name: str  # for people: "Open MPI 5.0.11"
    label: str  # in a file name: "openmpi-5.0.11"
    mpicxx: Path
    dependency_group: str | None  # of pyproject.toml, when the MPI is a wheel
    library_folders: tuple[str, ...]

    def build_variables(self, work: Path) -> dict[str, str]:
        """What setup/horovod/toolchain.cmake and mpicxx read; `work` is a folder that lasts as long
        as the build.
        """
        if self.dependency_group is None:
            return {"HVSCALE_BUILD_MPICXX": str(self.mpicxx)}
        # CMake splits what mpicxx prints at spaces, and the clone's path may hold one: have it
        # print links without.
        link = work / "mpi"
        link.symlink_to(self.mpicxx.parent.parent)
        # Open MPI's are told; MPICH's go by the path they are called by.
        folders = {"OPAL_INCLUDEDIR": str(link / "include"), "OPAL_LIBDIR": str(link / "lib")}
        return {"HVSCALE_BUILD_MPICXX": str(link / "bin" / self.mpicxx.name), **folders}


@dataclass(frozen=True)
class Choice:
    """One of the environments that can stand side by side in a clone: an MPI wheel, or the site's
    own MPI in its place.
    """

    name: str  # for people: "Open MPI"
    folder: str  # of the environment, in the clone
    package: str  # of the wheel, and its dependency group in pyproject.toml
    site_variable: str  # names the site's MPI
    site_libraries: tuple[str, ...] | None  # one of these must be in it; None: any MPI will do


CHOICES = {
    "openmpi": Choice("Open MPI", ".venv", "openmpi", "HVSCALE_MPI_HOME", None),
    # Debian's MPICH says its own name in its library's.
    "mpich": Choice("MPICH", ".venv-mpich", "mpich", "HVSCALE_MPICH_HOME", ("libmpi.so.12", "libmpich.so.12")),
}


def choose_mpi(choice: Choice, environment: Path, lock_file: Path) -> Mpi:
    """The site's MPI when the choice's variable names its folder, else the wheel."""
    home = os.environ.get(choice.site_variable)
    if home:
        return site_mpi(choice, Path(home).expanduser().absolute())
    version = read_locked_package(lock_file, choice.package).version
    return Mpi(
        name=f"{choice.name} {version}",
        label=f"{choice.package}-{version}",
        mpicxx=environment / "bin" / "mpicxx",
        dependency_group=choice.package,
        # From lib/python3.N/site-packages/horovod/torch up to lib.
        library_folders=("$ORIGIN/../../../..",),
    )


def site_mpi(choice: Choice, home: Path) -> Mpi:
    """Ask an installed MPI what it is and where its library lies.

    Raises SetUpError when it does not work, or has another ABI than the environment is for.
    """
    mpicxx = home / "bin" / "mpicxx"
    flags = first_line_of([str(mpicxx), "-show"])
    version = version_of(home / "bin" / "mpirun")
    if flags is None or version is None:
        raise SetUpError(
            f"{choice.site_variable}={home}: no working bin/mpicxx and bin/mpirun there: name the folder that holds both "
            "(Debian, Ubuntu: apt install libopenmpi-dev openmpi-bin and HVSCALE_MPI_HOME=/usr)"
        )
    named = [flag[2:] for flag in shlex.split(flags) if flag.startswith("-L")]
    candidates = [*named, str(home / "lib"), str(home / "lib64")]
    folders = tuple(dict.fromkeys(folder for folder in candidates if any(Path(folder).glob("libmpi.so*"))))
    needed = choice.site_libraries
    if needed and not any(Path(folder, library).exists() for folder in candidates for library in needed):
        raise SetUpError(
            f"{choice.site_variable}={home}: {version} has no {needed[0]}, the library that MPICH, MVAPICH2 and "
            "Intel MPI share: name the folder of one of them, or unset it for the MPICH wheel"
        )
    return Mpi(f"the MPI in {home} ({version})", "site-mpi", mpicxx, None, folders)


def version_of(mpirun: Path) -> str | None:
    """The line in which `mpirun --version` tells the version; with MPICH and its kin it is not the
    first.
    """
    command = [str(mpirun), "--version"]
    return first_line_of(command, line_with="Version:") or first_line_of(command)
