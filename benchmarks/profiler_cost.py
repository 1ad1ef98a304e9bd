"""Measure the profiler's overhead, with 1 and 4 threads.

It times a record beyond two clock reads, and a whole MPI call. Run it with the environment's
Python: `python benchmarks/profiler_cost.py [--rounds 5]`. It needs a C compiler and mpicc.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvscale.profiling import library_path

HERE = Path(__file__).parent
NATIVE = HERE.parent / "native"
RECORDER = ("hvprof/recorder.c", "hvprof/counters.c", "common/file_space.c", "common/log.c", "common/mapped_file.c")
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-pthread", f"-I{NATIVE}", f"-I{NATIVE / 'hvprof'}"]


def measure(command: list[str], environment: dict[str, str]) -> list[float]:
    """Run a benchmark program and return the numbers it prints, in nanoseconds."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, **environment, "HVPROF_DIRECTORY": folder, "HVPROF_MIB": "16"}
        done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    table = Table(title=f"Profiler overhead, medians of {rounds} interleaved rounds, nanoseconds")
    for name in ("measurement", "threads", "without", "with", "overhead", "ratio"):
        table.add_column(name, justify="left" if name == "measurement" else "right")
    with tempfile.TemporaryDirectory() as folder:
        record, calls = Path(folder, "record"), Path(folder, "calls")
        subprocess.run(
            ["cc", *FLAGS, "-o", record, HERE / "profiler_cost.c", *(NATIVE / name for name in RECORDER)],
            check=True,
        )
        mpicc = Path(sys.executable).with_name("mpicc")
        subprocess.run([mpicc, *FLAGS, "-o", calls, HERE / "profiler_calls.c"], check=True)
        libraries = {"libhvprof": library_path(), "with large counts": library_path(large_counts=True)}
        only_counted = {"HVPROF_RECORD": "counters"}
        for threads in ("1", "4"):
            kinds = {"a record": {}, "only counted": only_counted}
            rows: dict[str, list[list[float]]] = {name: [] for name in kinds}
            for _ in range(rounds):
                for name, variables in kinds.items():
                    rows[name].append(measure([str(record), threads], variables))
            for name, pairs in rows.items():
                add_row(table, f"two clock reads, then with {name}", threads, pairs)
            variants = {name: {"LD_PRELOAD": str(library)} for name, library in libraries.items()}
            variants["libhvprof, only counted"] = {**variants["libhvprof"], **only_counted}
            for library_name, preload in variants.items():
                pairs = [
                    [*measure([str(calls), threads], {}), *measure([str(calls), threads], preload)]
                    for _ in range(rounds)
                ]
                add_row(table, f"MPI_Allreduce, 8 bytes, one rank, {library_name}", threads, pairs)
    Console().print(table)


def add_row(table: Table, name: str, threads: str, pairs: list[list[float]]) -> None:
    without, with_ = (statistics.median(values) for values in zip(*pairs, strict=True))
    overhead = statistics.median(pair[1] - pair[0] for pair in pairs)
    table.add_row(name, threads, f"{without:.1f}", f"{with_:.1f}", f"{overhead:.1f}", f"{with_ / without:.2f}")


if __name__ == "__main__":
    main()
