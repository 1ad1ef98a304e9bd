"""Horovod builds: the MPI library each is linked to, and the Python environment that has it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from hvscale.launch import flavours
from hvscale.launch.mpi.build_record import check_torch, read_record, rebuild_command
from hvscale.launch.mpi.mpi_library import LINKED_MPI, USUAL_NAMES, library_version, names_of


def horovod_library(command: list[str], environment: dict[str, str]) -> Path | None:
    """Horovod's PyTorch library in the command's environment; None if there is none.

    The environment is the one that the command's program is in (`<prefix>/bin/<program>`).
    `command`: empty for a study that starts programs of its own.
    """
    program = shutil.which(command[0], path=environment.get("PATH", os.defpath)) if command else None
    if program is None:
        return None
    prefix = (
        Path(program).absolute().parent.parent
    )  # not resolved: a virtual environment's python is a link to another prefix
    return library_in(prefix)


def library_in(prefix: Path) -> Path | None:
    """Horovod's PyTorch library in a Python environment; None if there is none."""
    return next(iter(sorted(prefix.glob("lib/python3*/site-packages/horovod/torch/mpi_lib*.so"))), None)


def links_to(library: Path, soname: str) -> bool:
    """Whether the library needs `soname`.

    Quicker than ldd, which also finds the file.
    """
    strings = library.read_bytes()
    return any(b"\0" + name.encode() + b"\0" in strings for name in names_of(soname))


def linked_mpi(library: Path, environment: dict[str, str]) -> tuple[str, Path | None] | None:
    """The soname and file of the MPI library it needs; None without MPI.

    Debian's soname for MPICH is replaced by the usual one. The file is None if the dynamic linker
    does not find it. Raises RequestError for a file that is not a library, and without ldd.
    """
    try:
        listed = subprocess.run(["ldd", library], env=environment, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise RequestError("no ldd in PATH; it is part of the C library (Debian: libc-bin), so check PATH") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise RequestError(f"{library} is not a valid library: build it again: {rebuild_command(library)}") from error
    found = LINKED_MPI.search(listed)
    return None if found is None else (USUAL_NAMES.get(found[1], found[1]), Path(found[2]) if found[2] else None)


def check_horovod(command: list[str], environment: dict[str, str], flavour: flavours.Flavour, library: Library) -> None:
    """Raises RequestError if the command's Horovod was built for another PyTorch, or is linked to
    another MPI than the flavour's.
    """
    horovod = horovod_library(command, environment)
    if horovod is None:
        return
    check_torch(horovod, environment)
    if not flavour.has_mpi:
        return
    linked = linked_mpi(horovod, environment)
    if linked is None:
        raise RequestError(f"{horovod} was built without MPI, so {flavour.name} cannot run it: {option_without_mpi()}")
    soname, file = linked
    if file is None and soname == flavour.soname:
        raise RequestError(
            f"{horovod} needs {soname}, which was not found: load its MPI's module or add its folder to LD_LIBRARY_PATH, or "
            f"build Horovod for another MPI: {rebuild_command(horovod)}"
        )
    other = flavour.mismatched_release(file, library) if soname == flavour.soname else flavour_of_library(soname, file)
    if other:
        raise RequestError(
            f"{horovod} is built for {other} ({soname}), but {library.launcher} is {flavour.name} {library.version}: "
            f"the ranks could not connect. {remedy(soname, flavour)}, or {option_without_mpi()}"
        )


def flavour_of_library(soname: str, file: Path | None) -> str:
    """The flavour that the library reports, or the flavours of its soname if it reports nothing."""
    text = library_version(file, {}) if file else ""
    return flavours.describe(text) if text else " or ".join(flavours.of_soname(soname)) or "another MPI"


def option_without_mpi() -> str:
    """The --mpi options that start this Horovod whatever MPI it was built for."""
    return "use --mpi " + " or ".join(name for name, flavour in flavours.FLAVOURS.all().items() if not flavour.has_mpi)


def remedy(soname: str, flavour: flavours.Flavour) -> str:
    """How to make Horovod and the launcher match."""
    if soname == flavour.soname:
        return "Remove the first from LD_LIBRARY_PATH or the second from PATH"
    if flavour.setup_command:
        return (
            f"Use the --mpi that Horovod was built for, or `{flavour.setup_command}` for one built for {flavour.name}"
        )
    return "Use the --mpi that Horovod was built for"


# As `make setup` and `make setup MPI=mpich` name them.
ENVIRONMENT_NAMES = (".venv", ".venv-mpich")


def environments_of_clone() -> list[Path]:
    """This environment and, if it is one of a clone's, the others that this user can run."""
    own = Path(sys.prefix)
    beside = [own.parent / name for name in ENVIRONMENT_NAMES if own.name in ENVIRONMENT_NAMES and name != own.name]
    return [own, *(prefix for prefix in beside if os.access(prefix / "bin" / "python", os.X_OK))]


def environment_for(flavour: flavours.Flavour) -> Path:
    """The environment whose Horovod is built for the flavour's ABI.

    This environment if there is none, or no MPI.
    """
    if flavour.soname is not None:
        for prefix in environments_of_clone():
            library = library_in(prefix)
            if library is not None and links_to(library, flavour.soname):
                return prefix
    return Path(sys.prefix)


def with_flavour_programs(environment: dict[str, str], flavour: flavours.Flavour) -> dict[str, str]:
    """PATH with the programs of the flavour's environment first, then those of its site's MPI.

    `python` then means the one whose Horovod the flavour starts. A PATH that already has this
    environment's programs, at any position, keeps them there unless the flavour's environment is
    another one.
    """
    prefix = environment_for(flavour)
    path = environment.get("PATH", os.defpath).split(os.pathsep)
    own = str(prefix / "bin")
    active = {}
    if prefix != Path(sys.prefix) or own not in path:
        path.insert(0, own)
        # A shell may have activated one environment while the job runs in the other.
        active = {"VIRTUAL_ENV": str(prefix)} if "VIRTUAL_ENV" in environment else {}
    site_mpi = site_mpi_programs(prefix, flavour, environment)
    if site_mpi and site_mpi not in path:
        path.insert(path.index(own) + 1, site_mpi)
    return {**environment, **active, "PATH": os.pathsep.join(path)}


def site_mpi_programs(prefix: Path, flavour: flavours.Flavour, environment: dict[str, str]) -> str | None:
    """The launcher's folder of the site's MPI that the environment's Horovod was built against.

    None without one, and if LD_LIBRARY_PATH has another library of this ABI, as after `module load`
    of another MPI.
    """
    library = library_in(prefix)
    if flavour.soname is None or library is None or not links_to(library, flavour.soname):
        return None
    record = read_record(library)
    if record is None or record.mpi.home is None or not Path(record.mpi.home, "bin").is_dir():
        return None
    home = Path(record.mpi.home)
    loaded = filter(None, environment.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    others = (Path(folder) for folder in loaded if Path(folder, flavour.soname).exists())
    return None if any(home not in folder.parents for folder in others) else str(home / "bin")
