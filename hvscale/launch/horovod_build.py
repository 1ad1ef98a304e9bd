"""Which MPI library the Horovod of a command is linked to, read from its ELF file without loading it."""

import os
import shutil
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from hvscale.errors import RequestError
from hvscale.launch import flavours


def horovod_library(command: list[str], environment: dict[str, str]) -> Path | None:
    """Horovod's PyTorch library in the environment that the command's program lies in (`<prefix>/bin/<program>`); None where there is none."""
    program = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if program is None:
        return None
    prefix = (
        Path(program).absolute().parent.parent
    )  # not resolved: a virtual environment's python is a link to another prefix
    return next(iter(sorted(prefix.glob("lib/python3*/site-packages/horovod/torch/mpi_lib*.so"))), None)


def linked_mpi(library: Path) -> str | None:
    """The soname of the MPI library it needs, None when it was built without MPI. Raises RequestError for a file that is no ELF library."""
    try:
        with library.open("rb") as stream:
            dynamic = ELFFile(stream).get_section_by_name(".dynamic")
            tags = dynamic.iter_tags("DT_NEEDED") if isinstance(dynamic, DynamicSection) else ()
            needed = [str(tag.needed) for tag in tags]  # type: ignore[attr-defined]
    except (OSError, ELFError) as error:
        raise RequestError(f"{library} cannot be read ({error}): run `make setup` again") from error
    return next((name for name in needed if name.startswith(("libmpi.so", "libmpich.so", "libmpi_ibm.so"))), None)


def needed_by(dynamic: DynamicSection) -> list[str]:
    return [str(tag.needed) for tag in dynamic.iter_tags("DT_NEEDED")]  # type: ignore[attr-defined]  # set per kind of tag


def check(command: list[str], environment: dict[str, str], flavour: flavours.Flavour) -> None:
    """Raises RequestError when the command's Horovod is linked to another MPI than `flavour` launches."""
    library = horovod_library(command, environment)
    if library is None or flavour.soname is None:
        return
    soname = linked_mpi(library)
    if soname is None:
        raise RequestError(
            f"{library} was built without MPI, so {flavour.name} cannot run it: use --mpi gloo, or rebuild with `make setup`"
        )
    if soname != flavour.soname:
        built_for = flavours.of_soname(soname) or "another MPI"
        raise RequestError(
            f"{library} is linked to {soname} ({built_for}), but --mpi {flavour.name} starts {flavour.soname}: "
            f"the ranks would not find each other. Use the mpirun it was built for, --mpi gloo, or rebuild with `make setup`"
        )
