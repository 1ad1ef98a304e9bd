"""The Python environments of a clone, one for each MPI ABI: a flavour's job runs the programs of
its own.
"""

import os
import sys
from pathlib import Path

from hvscale.launch.flavours import Flavour
from hvscale.launch.mpi import horovod_build

# As `make setup` and `make setup MPI=mpich` name them.
NAMES = (".venv", ".venv-mpich")


def side_by_side() -> list[Path]:
    """This environment and then, where it is one of a clone's, the others that are there."""
    own = Path(sys.prefix)
    beside = [own.parent / name for name in NAMES if own.name in NAMES and name != own.name]
    return [own, *(prefix for prefix in beside if (prefix / "bin" / "python").exists())]


def prefix_for(flavour: Flavour) -> Path:
    """The environment whose Horovod is built for the flavour's ABI; this one when there is none, or
    no MPI.
    """
    if flavour.soname is not None:
        for prefix in side_by_side():
            library = horovod_build.library_in(prefix)
            if library is not None and horovod_build.needs(library, flavour.soname):
                return prefix
    return Path(sys.prefix)


def programs_first(environment: dict[str, str], flavour: Flavour) -> dict[str, str]:
    """PATH with the programs of the flavour's environment first: `python` then means the one with
    the Horovod that it starts.

    A PATH that has this environment's programs already, at whatever place, stays as it is unless
    the flavour's are others.
    """
    prefix = prefix_for(flavour)
    path = environment.get("PATH", os.defpath)
    programs = str(prefix / "bin")
    if prefix == Path(sys.prefix) and programs in path.split(os.pathsep):
        return environment
    # A shell may have activated the one environment, while the job runs in the other.
    active = {"VIRTUAL_ENV": str(prefix)} if "VIRTUAL_ENV" in environment else {}
    return {**environment, **active, "PATH": programs + os.pathsep + path}
