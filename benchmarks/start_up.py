"""Measure the start-up overhead of `hvscale launch` over a bare mpirun, and of eight containers.

Run it on an idle machine with the environment's Python: `python benchmarks/start_up.py [--rounds
20]`. The containers need Docker and its image (`hvscale image build`); without them the table lacks
that row.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from interleaved import run_interleaved
from rich.console import Console
from rich.table import Table

from hvscale.core.errors import RequestError
from hvscale.launch import placements

PROGRAMS = Path(sys.prefix) / "bin"
RANKS, CONTAINERS = 2, 8
ALLOW_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPIRUN = ["mpirun", "-np", str(RANKS), "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE", "true"]
COMMANDS = {
    "mpirun": MPIRUN,
    "hvscale --version": ["hvscale", "--version"],
    "hvscale launch": ["hvscale", "launch", "-np", str(RANKS), "--", "true"],
}
CONTAINER_COMMAND = ["hvscale", "launch", "-np", str(CONTAINERS), "--placement", "docker:rank", "--", "true"]


def run_seconds(command: list[str], folder: Path) -> float:
    """Run a command and return its seconds. Raises CalledProcessError if it fails."""
    start = time.monotonic()
    program = [str(PROGRAMS / command[0]), *command[1:]]
    # Users' Python keeps its bytecode, whatever the shell of a test machine sets.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(program, cwd=folder, env={**environment, **ALLOW_ROOT}, capture_output=True, check=True)
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    commands = dict(COMMANDS)
    try:
        placements.find("docker:rank").readiness()
        commands[f"{CONTAINERS} containers"] = CONTAINER_COMMAND
    except RequestError as problem:
        Console(stderr=True).print(f"no containers: {problem}", soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        variants = {name: partial(run_seconds, command, Path(folder)) for name, command in commands.items()}
        measured = run_interleaved(variants, rounds)
    table = Table("start of `true`", "median, s", "min, s", "max, s")
    for name, values in measured.items():
        table.add_row(name, *(f"{value:.2f}" for value in (np.median(values), min(values), max(values))))
    overhead = np.array(measured["hvscale launch"]) - np.array(measured["mpirun"])
    table.add_row(
        "overhead of hvscale launch",
        *(f"{value:.2f}" for value in (np.median(overhead), overhead.min(), overhead.max())),
    )
    Console().print(table)


if __name__ == "__main__":
    main()
