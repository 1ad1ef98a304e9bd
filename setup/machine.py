"""Check that the machine has the tools for a set-up, by running each of them."""

import os
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from logged_run import SetUpError

PYTHON_HEADERS = Path(sysconfig.get_path("include"))
# A header that the standard library of a compiler for this standard has.
STANDARD_HEADERS = {17: "optional", 20: "concepts"}
OLD_CXX_COMPILER = (
    "{compiler} does not compile C++{standard}, which PyTorch's headers need: install g++ 11 or later "
    "(Debian, Ubuntu: apt install g++; Fedora, RHEL: dnf install gcc-c++; a cluster: module load gcc) or set CXX to another "
    "compiler"
)


@dataclass(frozen=True)
class Tool:
    """A tool for the set-up, and the packages that contain it."""

    name: str
    debian: str
    fedora: str


MAKE = Tool("make", "make", "make")
C_COMPILER = Tool("C compiler", "gcc", "gcc")
CXX_COMPILER = Tool("C++ compiler", "g++", "gcc-c++")
HEADERS = Tool("Python.h", "python3-dev", "python3-devel")
PIP = Tool("pip, venv or uv", "python3-venv", "python3-pip")


def missing_error(tools: list[Tool]) -> SetUpError:
    """Make an error of one line that names all missing tools and the packages to install."""
    names = ", ".join(f"no {tool.name}" for tool in tools)
    debian, fedora = " ".join(tool.debian for tool in tools), " ".join(tool.fedora for tool in tools)
    return SetUpError(f"{names}: type apt install {debian} (Debian, Ubuntu) or dnf install {fedora} (Fedora, RHEL)")


@dataclass(frozen=True)
class Compilers:
    """The compilers for Horovod and hvscale's C code."""

    c: str
    cxx: str
    cxx_version: str


def first_line_of(command: list[str], line_with: str = "") -> str | None:
    """Return the first output line that contains `line_with`, None if the command fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip() and line_with in line]
    return lines[0] if lines else None


def find_tools(*, uv_available: bool) -> Compilers:
    """Find make and both compilers; CC and CXX take precedence.

    Raises SetUpError with all missing tools, and for a CC or CXX that does not run.
    """
    cxx, c = find_compiler("CXX", "c++", "g++"), find_compiler("CC", "cc", "gcc")
    found = {MAKE: first_line_of(["make", "--version"]), CXX_COMPILER: cxx, C_COMPILER: c, PIP: uv_available}
    missing = [tool for tool, value in found.items() if not value]
    if cxx and c and not missing:
        return Compilers(c[0], *cxx)
    raise missing_error(missing if (PYTHON_HEADERS / "Python.h").exists() else [*missing, HEADERS])


def find_compiler(variable: str, *usual: str) -> tuple[str, str] | None:
    """Return the path and the version line of the variable's compiler, or of the first that runs.

    Raises SetUpError if the variable's does not run: another one would be used unnoticed.
    """
    named = os.environ.get(variable)
    for name in [named] if named else usual:
        path = shutil.which(name)
        version = first_line_of([path, "--version"]) if path else None
        if path and version:
            return path, version
    if named:
        raise SetUpError(
            f"{variable}={named}: no compiler that runs; give its name or path without options, or unset it"
        )
    return None


def check_compiler(compilers: Compilers, standard: int = 20) -> None:
    """Compile two small programs, to find a missing header before a build of minutes."""
    header = STANDARD_HEADERS.get(standard, STANDARD_HEADERS[max(STANDARD_HEADERS)])
    if not compiles(compilers.cxx, standard, f"#include <{header}>\nint main() {{ return 0; }}\n"):
        raise SetUpError(OLD_CXX_COMPILER.format(compiler=compilers.cxx, standard=standard))
    if not compiles(
        compilers.cxx, standard, "#include <Python.h>\nint main() { return 0; }\n", "-I", str(PYTHON_HEADERS)
    ):
        raise missing_error([HEADERS])


def compiles(compiler: str, standard: int, source: str, *options: str) -> bool:
    """Return whether the compiler accepts a program of this C++ standard."""
    command = [compiler, f"-std=c++{standard}", "-fsyntax-only", *options, "-x", "c++", "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True, check=False).returncode == 0


def check_space(folder: Path, needed_mib: int, fix: str) -> None:
    """Raise SetUpError if the file system of a folder, which need not exist yet, is too full."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_mib = shutil.disk_usage(existing).free >> 20
    if free_mib < needed_mib:
        raise SetUpError(
            f"{free_mib} MiB are free for {folder}, but {needed_mib} MiB are needed: free space there, or {fix}"
        )


def build_jobs() -> int:
    """Return the number of parallel compilers: one per core, and at least 2 GiB of memory each."""
    cores = len(os.sched_getaffinity(0))
    available_kib = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    )
    return max(1, min(cores, available_kib // (2 * 1024 * 1024)))
