"""Checks that the machine has what a set-up needs, by running each tool."""

import os
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from messages import SetUpError

PYTHON_HEADERS = Path(sysconfig.get_path("include"))
OLD_CXX_COMPILER = (
    "{compiler} does not compile C++20, which PyTorch's headers need: install g++ 11 or later "
    "(Debian, Ubuntu: apt install g++; Fedora, RHEL: dnf install gcc-c++) or name another compiler with CXX"
)


@dataclass(frozen=True)
class Need:
    """Something that a set-up needs, and the packages that bring it."""

    name: str
    debian: str
    fedora: str


MAKE = Need("make", "make", "make")
C_COMPILER = Need("C compiler", "gcc", "gcc")
CXX_COMPILER = Need("C++ compiler", "g++", "gcc-c++")
HEADERS = Need("Python.h", "python3-dev", "python3-devel")
PIP = Need("pip, venv or uv", "python3-venv", "python3-pip")


def lacking(needs: list[Need]) -> SetUpError:
    """One line that names all that is missing and the packages to install."""
    what = ", ".join(f"no {need.name}" for need in needs)
    debian, fedora = " ".join(need.debian for need in needs), " ".join(need.fedora for need in needs)
    return SetUpError(f"{what}: install it (Debian, Ubuntu: apt install {debian}; Fedora, RHEL: dnf install {fedora})")


@dataclass(frozen=True)
class Compilers:
    """The compilers that Horovod and hvscale's C parts are built with."""

    c: str
    cxx: str
    cxx_version: str


def first_line_of(command: list[str], line_with: str = "") -> str | None:
    """Return the first line that a command prints (and that holds `line_with`), None when it cannot
    be run or fails.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip() and line_with in line]
    return lines[0] if lines else None


def find_tools(*, uv_can_be_had: bool) -> Compilers:
    """Find make and both compilers, CC and CXX first; SetUpError names at once all that is to be
    installed.
    """
    cxx = find_compiler([os.environ.get("CXX", ""), "c++", "g++"])
    c = find_compiler([os.environ.get("CC", ""), "cc", "gcc"])
    found = {MAKE: first_line_of(["make", "--version"]), CXX_COMPILER: cxx, C_COMPILER: c, PIP: uv_can_be_had}
    missing = [need for need, tool in found.items() if not tool]
    if cxx and c and not missing:
        return Compilers(c[0], *cxx)
    raise lacking(missing if (PYTHON_HEADERS / "Python.h").exists() else [*missing, HEADERS])


def find_compiler(names: list[str]) -> tuple[str, str] | None:
    """Return the path and the version line of the first compiler that runs."""
    for name in names:
        path = shutil.which(name) if name else None
        version = first_line_of([path, "--version"]) if path else None
        if path and version:
            return path, version
    return None


def check_that_horovod_can_be_compiled(compilers: Compilers) -> None:
    """Compile two small programs: a missing header is then found before minutes of building."""
    if not compiles(compilers.cxx, "#include <concepts>\nint main() { return 0; }\n"):
        raise SetUpError(OLD_CXX_COMPILER.format(compiler=compilers.cxx))
    if not compiles(compilers.cxx, "#include <Python.h>\nint main() { return 0; }\n", "-I", str(PYTHON_HEADERS)):
        raise lacking([HEADERS])


def compiles(compiler: str, source: str, *options: str) -> bool:
    """Tell whether a C++20 program passes the compiler's checks."""
    command = [compiler, "-std=c++20", "-fsyntax-only", *options, "-x", "c++", "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True, check=False).returncode == 0


def build_jobs() -> int:
    """How many compilers may run at once: one for each core, and 2 GiB of memory for each."""
    cores = len(os.sched_getaffinity(0))
    available_kib = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    )
    return max(1, min(cores, available_kib // (2 * 1024 * 1024)))
