"""Open files, threads and memory of a launched job's own processes, by number of ranks.

The ranks run `sleep`. `python benchmarks/launcher_resources.py [-np 64,512] [--mpi openmpi,gloo]`.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from hvscale.core.numbers import parse_ranks

HVSCALE = Path(sys.executable).parent / "hvscale"
PARENT, SLEEP = "hvrank", "sleep"
START_SECONDS = 300
KIB = 1024


def named(controller: psutil.Process, name: str) -> list[psutil.Process]:
    found = []
    for process in controller.children(recursive=True):
        try:
            if process.name() == name:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_for_ranks(controller: psutil.Process, ranks: int) -> list[psutil.Process]:
    """The parents of all commands, once these run. Raises SystemExit if they do not start."""
    deadline = time.monotonic() + START_SECONDS
    while len(named(controller, SLEEP)) < ranks:
        if not controller.is_running() or time.monotonic() > deadline:
            raise SystemExit(f"{ranks} ranks did not start")
        time.sleep(0.5)
    return named(controller, PARENT)


def measure(mpi: str, ranks: int, run: Path) -> list[str]:
    """One row of the table."""
    command = [str(HVSCALE), "launch", "--mpi", mpi, "-np", str(ranks), "--run", str(run), "--", SLEEP, "600"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            controller = psutil.Process(started.pid)
            parents = wait_for_ranks(controller, ranks)
            launchers = [child for child in controller.children() if child.name() != PARENT]
            private = [process.memory_full_info().uss for process in parents]
            return [
                mpi,
                str(ranks),
                *resources([controller]),
                *resources(launchers),
                f"{len(parents) / ranks:.1f}",
                f"{sum(private) / KIB / ranks:.0f}",
            ]
        finally:
            started.terminate()


def resources(processes: list[psutil.Process]) -> list[str]:
    """Open files, threads and resident MiB."""
    if not processes:
        return ["", "", ""]
    return [
        str(sum(process.num_fds() for process in processes)),
        str(sum(process.num_threads() for process in processes)),
        f"{sum(process.memory_info().rss for process in processes) / KIB / KIB:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-np", "--np", type=parse_ranks, default=[64, 128, 512])
    parser.add_argument("--mpi", default="openmpi,gloo")
    options = parser.parse_args()
    table = Table(title="hvscale launch")
    names = ["library", "np", "files", "threads", "MiB", "launcher's files", "threads", "MiB"]
    for name in [*names, "processes a rank", "private KiB a rank"]:
        table.add_column(name, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for mpi in options.mpi.split(","):
            for ranks in options.np:
                table.add_row(*measure(mpi, ranks, Path(folder) / f"{mpi}-{ranks}"))
    Console().print(table)


if __name__ == "__main__":
    main()
