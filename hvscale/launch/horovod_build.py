"""Which MPI library the Horovod of a command is linked to, as the dynamic linker finds it in the job's environment."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from hvscale.errors import RequestError
from hvscale.launch import flavours
from hvscale.run_folder import Library

MPI_LIBRARY = re.compile(r"^\s*(libmpi\w*\.so\.\d+) => (?:not found|(\S+))", re.MULTILINE)
REBUILD = "run `make setup` again"


def horovod_library(command: list[str], environment: dict[str, str]) -> Path | None:
    """Horovod's PyTorch library in the environment that the command's program lies in (`<prefix>/bin/<program>`); None where there is none."""
    program = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if program is None:
        return None
    prefix = (
        Path(program).absolute().parent.parent
    )  # not resolved: a virtual environment's python is a link to another prefix
    return next(iter(sorted(prefix.glob("lib/python3*/site-packages/horovod/torch/mpi_lib*.so"))), None)


def linked_mpi(library: Path, environment: dict[str, str]) -> tuple[str, Path | None] | None:
    """The soname of the MPI library it needs and the file that this means here, None when it was built without MPI.

    Raises RequestError for a file that is no library.
    """
    try:
        listed = subprocess.run(["ldd", library], env=environment, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RequestError(f"{library} cannot be read as a library: {REBUILD}") from error
    found = MPI_LIBRARY.search(listed)
    return None if found is None else (found[1], Path(found[2]) if found[2] else None)


def check(command: list[str], environment: dict[str, str], flavour: flavours.Flavour, library: Library) -> None:
    """Raises RequestError when the command's Horovod is linked to another MPI than the one that `flavour` launches."""
    horovod = horovod_library(command, environment)
    if horovod is None or flavour.soname is None:
        return
    linked = linked_mpi(horovod, environment)
    if linked is None:
        raise RequestError(f"{horovod} was built without MPI, so {flavour.name} cannot run it: use --mpi gloo")
    soname, file = linked
    if file is None and soname == flavour.soname:
        raise RequestError(
            f"{horovod} needs {soname}, which is nowhere to be found: put its folder into LD_LIBRARY_PATH, or {REBUILD}"
        )
    other = (
        flavours.of_soname(soname) or "another MPI"
        if soname != flavour.soname
        else flavour.other_release(file, library)
    )
    if other:
        raise RequestError(
            f"{horovod} is built for {other} ({soname}), but {library.launcher} is {flavour.name} {library.version}: "
            "the ranks would not find each other. Use the mpirun that Horovod was built for, or --mpi gloo"
        )
