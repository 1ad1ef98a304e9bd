"""Asks an MPI library about itself in a separate process, and finds a launcher's own library."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hvscale.core.built_library import built_library

ASK_LIBRARY = """
import ctypes, sys
text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
ctypes.CDLL(sys.argv[1]).MPI_Get_library_version(text, ctypes.byref(length))
print(text.value.decode())
"""
ASK_FOR_FUNCTION = """
import ctypes, sys
for name in sys.argv[2:]:
    try:
        library = ctypes.CDLL(name)
    except OSError:
        continue
    print(hasattr(library, sys.argv[1]))
    break
"""
ASK_SECONDS = 30
# Folders of an installation that may hold libmpi.
LIBRARY_FOLDERS = ("lib", "lib64", "lib/release")
# A line of ldd about an MPI library. Debian's mpicxx links the C++ bindings, too, and first.
LINKED_MPI = re.compile(r"^\s*(libmpi(?!_?cxx)\w*\.so\.\d+) => (?:not found|(\S+))", re.MULTILINE)
# Programs beside a launcher that are linked to its library: Open MPI's, and those of MPICH's
# family.
LINKED_PROGRAMS = ("ompi_info", "mpichversion", "mpivars")
# Names the library that mpi4py 4.1 and later loads. Otherwise a wheel takes that of its own Python
# environment, whatever launcher starts it.
MPI4PY_LIBRARY = "MPI4PY_LIBMPI"
# Debian renames MPICH's library.
USUAL_NAMES = {"libmpich.so.12": "libmpi.so.12"}
# A library with the usual name that loads Debian's.
UNDER_USUAL_NAME = "debian-mpich/libmpi.so.12"


def library_version(file: Path, environment: Mapping[str, str]) -> str:
    """The text of MPI_Get_library_version; empty if the file cannot be asked.

    The function may be called before MPI_Init.
    """
    command = [sys.executable, "-I", "-S", "-c", ASK_LIBRARY, str(file)]
    try:
        result = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=ASK_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    return result.stdout if result.returncode == 0 else ""


def has_function(function: str, files: list[str], environment: Mapping[str, str]) -> bool:
    """Whether the first loadable library of `files` exports `function`.

    `files`: paths, or names for the dynamic linker. If the first file does not name the function, a
    separate process loads it, which takes 60 ms: it may link to the library that has the function.
    """
    first = Path(files[0])
    with suppress(OSError):
        if first.is_absolute() and f"\0{function}\0".encode() in first.read_bytes():  # its table of symbols
            return True
    command = [sys.executable, "-I", "-S", "-c", ASK_FOR_FUNCTION, function, *files]
    return program_output(command, environment).strip() == "True"


def names_of(soname: str) -> list[str]:
    """The names under which distributions install that library, the usual one first."""
    return [soname, *(name for name, usual in USUAL_NAMES.items() if usual == soname)]


def library_beside(launcher: Path, soname: str) -> Path | None:
    """The library of that name in the launcher's own prefix.

    None if it is elsewhere, as in a distribution's packages.
    """
    prefix = launcher.resolve().parent.parent
    files = (prefix / folder / soname for folder in LIBRARY_FOLDERS)
    return next((file for file in files if file.exists()), None)


def library_of_launcher(launcher: Path, soname: str, environment: Mapping[str, str]) -> Path | None:
    """The launcher's library of that name, or of Debian's name for it; None if not found.

    It is in the launcher's prefix or in a distribution's folders.
    """
    own = library_beside(launcher, soname)
    if own is not None:
        return own
    programs = (launcher.resolve().parent / name for name in LINKED_PROGRAMS)
    listed = (program_output(["ldd", str(program)], environment) for program in programs if program.exists())
    found = {
        USUAL_NAMES.get(name, name): Path(file) for text in listed for name, file in LINKED_MPI.findall(text) if file
    }
    return found.get(soname)


def for_mpi4py(environment: dict[str, str], launcher: Path, soname: str) -> dict[str, str]:
    """The environment with the launcher's library named for mpi4py, unless the user named one.

    An mpi4py that was compiled for one MPI does not read the variable. A wheel loads the library by
    its usual name, whatever the variable says, if the process has loaded MPI before.
    """
    if MPI4PY_LIBRARY in environment:
        return environment
    library = library_of_launcher(launcher, soname, environment)
    if library is None:
        return environment
    if library.name in USUAL_NAMES:
        library = built_library(UNDER_USUAL_NAME)
        environment = library_folder_first(environment, library.parent)
    return {**environment, MPI4PY_LIBRARY: str(library)}


def library_folder_first(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """The environment in which the dynamic linker looks into `folder` first."""
    others = environment.get("LD_LIBRARY_PATH")
    return {**environment, "LD_LIBRARY_PATH": f"{folder}{os.pathsep}{others}" if others else str(folder)}


def program_output(command: list[str], environment: Mapping[str, str]) -> str:
    """The stdout of an MPI's program; empty if it is missing or does not start."""
    try:
        result = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=ASK_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout
