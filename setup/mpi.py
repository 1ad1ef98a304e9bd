"""The MPI that Horovod is built against: the locked wheel in the environment, or the site's."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from logged_run import SetUpError
from machine import first_line_of
from packages import read_locked_package


@dataclass(frozen=True)
class Mpi:
    """An MPI to build against.

    library_folders: run path entries for libmpi; $ORIGIN is the folder of Horovod's library.
    """

    name: str  # for people: "Open MPI 5.0.11"
    label: str  # in a file name: "openmpi-5.0.11"
    mpicxx: Path
    dependency_group: str | None  # of pyproject.toml; None: the site's MPI
    library_folders: tuple[str, ...]

    def build_variables(self, work: Path) -> dict[str, str]:
        """Return the variables for setup/horovod/toolchain.cmake and mpicxx.

        work: a folder that exists until the build ends.
        """
        if self.dependency_group is None:
            return {"HVSCALE_BUILD_MPICXX": str(self.mpicxx)}
        # CMake splits mpicxx's output at spaces, which the clone's path may contain: use a link.
        link = work / "mpi"
        link.symlink_to(self.mpicxx.parent.parent)
        # Open MPI reads these variables; MPICH derives its folders from the path of mpicxx.
        folders = {"OPAL_INCLUDEDIR": str(link / "include"), "OPAL_LIBDIR": str(link / "lib")}
        return {"HVSCALE_BUILD_MPICXX": str(link / "bin" / self.mpicxx.name), **folders}


@dataclass(frozen=True)
class MpiChoice:
    """A value of --mpi: an environment with an MPI wheel, or the site's MPI instead."""

    name: str  # for people: "Open MPI"
    folder: str  # of the environment, in the clone
    package: str  # the wheel, and its dependency group in pyproject.toml
    site_variable: str  # the variable with the folder of the site's MPI
    site_libraries: tuple[str, ...] | None  # the folder must contain one of these; None: any MPI


CHOICES = {
    "openmpi": MpiChoice("Open MPI", ".venv", "openmpi", "HVSCALE_MPI_HOME", None),
    # Debian names MPICH's library libmpich.so.
    "mpich": MpiChoice("MPICH", ".venv-mpich", "mpich", "HVSCALE_MPICH_HOME", ("libmpi.so.12", "libmpich.so.12")),
}


def choose_mpi(choice: MpiChoice, environment: Path, lock_file: Path) -> Mpi:
    """Return the site's MPI if the choice's variable is set, else the wheel."""
    home = os.environ.get(choice.site_variable)
    if home:
        return site_mpi(choice, Path(home).expanduser().absolute())
    version = read_locked_package(lock_file, choice.package).version
    return Mpi(
        name=f"{choice.name} {version}",
        label=f"{choice.package}-{version}",
        mpicxx=environment / "bin" / "mpicxx",
        dependency_group=choice.package,
        # From lib/python3.N/site-packages/horovod/torch to lib.
        library_folders=("$ORIGIN/../../../..",),
    )


def site_mpi(choice: MpiChoice, home: Path) -> Mpi:
    """Read the version and library folders of an installed MPI.

    Raises SetUpError if it does not work or has the wrong ABI.
    """
    mpicxx = home / "bin" / "mpicxx"
    flags = first_line_of([str(mpicxx), "-show"])
    version = version_of(home / "bin" / "mpirun")
    if flags is None or version is None:
        raise SetUpError(
            f"{choice.site_variable}={home}: no working bin/mpicxx and bin/mpirun; set it to the folder that contains both "
            "(Debian, Ubuntu: apt install libopenmpi-dev openmpi-bin and HVSCALE_MPI_HOME=/usr)"
        )
    named = [flag[2:] for flag in shlex.split(flags) if flag.startswith("-L")]
    candidates = [*named, str(home / "lib"), str(home / "lib64")]
    folders = tuple(dict.fromkeys(folder for folder in candidates if any(Path(folder).glob("libmpi.so*"))))
    needed = choice.site_libraries
    if needed and not any(Path(folder, library).exists() for folder in candidates for library in needed):
        raise SetUpError(
            f"{choice.site_variable}={home}: {version} has no {needed[0]}, the library of MPICH, MVAPICH2 and Intel MPI; "
            "set it to the folder of one of them, or unset it to use the MPICH wheel"
        )
    return Mpi(f"the MPI in {home} ({version})", "site-mpi", mpicxx, None, folders)


def version_of(mpirun: Path) -> str | None:
    """Return the version line of `mpirun --version`; MPICH and its derivatives print it later."""
    command = [str(mpirun), "--version"]
    return first_line_of(command, line_with="Version:") or first_line_of(command)
