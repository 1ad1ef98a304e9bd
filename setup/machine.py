"""Checks that the machine has what a set-up needs, by running each tool."""

import os
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from messages import SetUpError

NO_MAKE = "no make: install make (Debian, Ubuntu: apt install make; Fedora, RHEL: dnf install make)"
NO_C_COMPILER = "no C compiler: install gcc (Debian, Ubuntu: apt install gcc; Fedora, RHEL: dnf install gcc)"
NO_CXX_COMPILER = "no C++ compiler: install g++ (Debian, Ubuntu: apt install g++; Fedora, RHEL: dnf install gcc-c++)"
OLD_CXX_COMPILER = (
    "{compiler} does not compile C++20, which PyTorch's headers need: install g++ 11 or later "
    "(Debian, Ubuntu: apt install g++; Fedora, RHEL: dnf install gcc-c++) or name another compiler with CXX"
)
NO_PYTHON_HEADERS = (
    "no Python.h in {folder}: install Python's headers "
    "(Debian, Ubuntu: apt install python3-dev; Fedora, RHEL: dnf install python3-devel)"
)


@dataclass(frozen=True)
class Compilers:
    """The compilers that Horovod and hvscale's C parts are built with."""

    c: str
    cxx: str
    cxx_version: str


def first_line_of(command: list[str], line_with: str = "") -> str | None:
    """Return the first line that a command prints (and that holds `line_with`), None when it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip() and line_with in line]
    return lines[0] if lines else None


def find_compilers() -> Compilers:
    """Find make and both compilers, CC and CXX first; SetUpError names what to install."""
    if first_line_of(["make", "--version"]) is None:
        raise SetUpError(NO_MAKE)
    cxx, cxx_version = find_compiler([os.environ.get("CXX", ""), "c++", "g++"], NO_CXX_COMPILER)
    c, _ = find_compiler([os.environ.get("CC", ""), "cc", "gcc"], NO_C_COMPILER)
    return Compilers(c, cxx, cxx_version)


def find_compiler(names: list[str], message: str) -> tuple[str, str]:
    """Return the path and the version line of the first compiler that runs."""
    for name in names:
        path = shutil.which(name) if name else None
        version = first_line_of([path, "--version"]) if path else None
        if path and version:
            return path, version
    raise SetUpError(message)


def check_that_horovod_can_be_compiled(compilers: Compilers) -> None:
    """Compile two small programs: a missing header is then found before minutes of building."""
    if not compiles(compilers.cxx, "#include <concepts>\nint main() { return 0; }\n"):
        raise SetUpError(OLD_CXX_COMPILER.format(compiler=compilers.cxx))
    folder = sysconfig.get_path("include")
    if not compiles(compilers.cxx, "#include <Python.h>\nint main() { return 0; }\n", "-I", folder):
        raise SetUpError(NO_PYTHON_HEADERS.format(folder=folder))


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
