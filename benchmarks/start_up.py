"""What starting costs: `hvscale launch` against the bare mpirun on this machine, in turns; and
eight containers, from the command to its end.

Run it on a machine that does nothing else, with the environment's Python: `python
benchmarks/start_up.py [--rounds 20]`. The containers need Docker and its image (`hvscale image
build`); without them that line is left out.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hvscale.core.errors import RequestError
from hvscale.launch import placements

PROGRAMS = Path(sys.prefix) / "bin"
RANKS, CONTAINERS = 2, 8
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPIRUN = ["mpirun", "-np", str(RANKS), "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE", "true"]
VARIANTS = {
    "mpirun": MPIRUN,
    "hvscale --version": ["hvscale", "--version"],
    "hvscale launch": ["hvscale", "launch", "-np", str(RANKS), "--", "true"],
}
IN_CONTAINERS = ["hvscale", "launch", "-np", str(CONTAINERS), "--placement", "docker:rank", "--", "true"]


def seconds(words: list[str], folder: Path) -> float:
    """How long one start takes, to its end. Raises CalledProcessError when it fails."""
    start = time.monotonic()
    program = [str(PROGRAMS / words[0]), *words[1:]]
    subprocess.run(program, cwd=folder, env={**os.environ, **AS_ROOT}, capture_output=True, check=True)
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    variants = dict(VARIANTS)
    try:
        placements.find("docker:rank").readiness()
        variants[f"{CONTAINERS} containers"] = IN_CONTAINERS
    except RequestError as problem:
        Console(stderr=True).print(f"no containers: {problem}", soft_wrap=True)
    measured: dict[str, list[float]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as folder:
        for _ in track(range(rounds), description="starting", console=Console(stderr=True)):
            for name, words in variants.items():
                measured[name].append(seconds(words, Path(folder)))
    table = Table("start of `true`", "median, s", "least, s", "most, s")
    for name, values in measured.items():
        table.add_row(name, *(f"{value:.2f}" for value in (np.median(values), min(values), max(values))))
    added = np.array(measured["hvscale launch"]) - np.array(measured["mpirun"])
    table.add_row("hvscale launch adds", *(f"{value:.2f}" for value in (np.median(added), added.min(), added.max())))
    Console().print(table)


if __name__ == "__main__":
    main()
