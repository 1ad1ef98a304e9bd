"""What an MPI library says of itself: the file is loaded in a process of its own and asked."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

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
# Of an installation, where libmpi may lie.
LIBRARY_FOLDERS = ("lib", "lib64", "lib/release")


def library_version(file: Path, environment: Mapping[str, str]) -> str:
    """The text of MPI_Get_library_version, which may be called before MPI_Init; empty when the file cannot be asked."""
    command = [sys.executable, "-I", "-S", "-c", ASK_LIBRARY, str(file)]
    try:
        asked = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=ASK_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    return asked.stdout if asked.returncode == 0 else ""


def has_function(function: str, files: list[str], environment: Mapping[str, str]) -> bool:
    """Whether the first of `files`, paths or names for the dynamic linker, that can be loaded exports `function`."""
    command = [sys.executable, "-I", "-S", "-c", ASK_FOR_FUNCTION, function, *files]
    return told_by(command, environment).strip() == "True"


def beside(launcher: Path, soname: str) -> Path | None:
    """The library of that name in the launcher's own prefix; None where it lies elsewhere, as in a distribution's packages."""
    prefix = launcher.resolve().parent.parent
    files = (prefix / folder / soname for folder in LIBRARY_FOLDERS)
    return next((file for file in files if file.exists()), None)


def told_by(command: list[str], environment: Mapping[str, str]) -> str:
    """What a program of an MPI prints about itself; empty when there is none or it does not start."""
    try:
        asked = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=ASK_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout
