"""Tests of the C code in native/, and how tests compile it."""

from pathlib import Path

NATIVE = Path(__file__).parents[2] / "native"
# For tests that compile: here warnings are errors, unlike in a user's installation.
FLAGS = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-pthread", f"-I{NATIVE}"]
SHARED_LIBRARY = ["-fPIC", "-shared", "-fvisibility=hidden"]


def sources(*folders: str) -> list[str]:
    """Every C file of these folders of native/."""
    return [str(path) for folder in folders for path in sorted((NATIVE / folder).glob("*.c"))]


HVPROF = sources("hvprof", "mpi_abi", "common")
BROADCAST = sources("broadcast", "mpi_abi", "common")
NCCL_PLUGIN = sources("nccl_plugin", "common")
BENCH_TIMER = sources("bench_timer")
