"""Tests of the C code in native/, and how tests compile it."""

import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
# In tests that compile, warnings are errors, unlike in a user's installation.
FLAGS = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-pthread", f"-I{NATIVE}"]
SHARED_LIBRARY = ["-fPIC", "-shared", "-fvisibility=hidden"]


def sources(*folders: str) -> list[str]:
    """Every C file of these folders of native/."""
    return [str(path) for folder in folders for path in sorted((NATIVE / folder).glob("*.c"))]


def sanitizer_runtime(name: str) -> Path:
    """The path of a sanitizer's runtime, such as libasan.so; skips the test without it."""
    located = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    found = Path(located.stdout.strip())
    if not found.is_absolute():
        pytest.skip(f"the C compiler has no {name}")
    return found.resolve()


HVPROF = sources("hvprof", "mpi_abi", "common")
BROADCAST = sources("broadcast", "mpi_abi", "common")
NCCL_PLUGIN = sources("nccl_plugin", "common")
BENCH_TIMER = sources("bench_timer")
