"""What launching and recording cost with many ranks on one machine.

The ranks run a C program with 50 all-reduces, and `true`. Run it on an idle machine:
`python benchmarks/many_ranks.py [-np 32,128] [--rounds 3]`. It needs mpicc.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from interleaved import median_interval, run_interleaved
from rich.console import Console
from rich.table import Table
from start_up import ALLOW_ROOT

from hvscale.core.numbers import parse_ranks

HERE = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
CALLS = "50"
HANG_SECONDS = 60
STARTS = 3
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "true"}  # as hvscale launches ranks that share cores


def seconds(command: list[str], folder: Path) -> float:
    """Run a command and return its seconds. Raises CalledProcessError if it fails.

    Open MPI's launcher sometimes hangs with many short ranks: it is then started again, up to
    STARTS times in all. NaN if it hung each time.
    """
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", **ALLOW_ROOT, **YIELD}
    for _ in range(STARTS):
        start = time.monotonic()
        try:
            subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True, timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"hung for {HANG_SECONDS} s: {shlex.join(command)}", file=sys.stderr)
        else:
            taken = time.monotonic() - start
            print(f"{taken:6.2f} s  {shlex.join(command)}", file=sys.stderr)
            return taken
    return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-np", "--np", type=parse_ranks, default=[32, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-true", action="store_true", help="only the all-reduces")
    options = parser.parse_args()
    table = Table(title=f"medians of {options.rounds} interleaved rounds, seconds")
    for name in ("np", "command", "median", "over bare", "95 % interval"):
        table.add_column(name, justify="left" if name == "command" else "right")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "allreduces"
        subprocess.run([PROGRAMS / "mpicc", "-O2", "-o", program, HERE / "allreduces.c"], check=True)
        for np_ in options.np:
            ranks = ["-np", str(np_)]
            job = [str(program), CALLS]
            mpirun = ["mpirun", *ranks, "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
            commands = {
                "mpirun": [*mpirun, *job],
                "hvscale launch": ["hvscale", "launch", *ranks, "--", *job],
                "hvscale profile": ["hvscale", "profile", *ranks, "--", *job],
                "mpirun, true": [*mpirun, "true"],
                "hvscale launch, true": ["hvscale", "launch", *ranks, "--", "true"],
            }
            if options.without_true:
                commands = {name: words for name, words in commands.items() if words[-1] != "true"}
            variants = {
                name: partial(seconds, [str(PROGRAMS / words[0]), *words[1:]], Path(folder))
                for name, words in commands.items()
            }
            measured = run_interleaved(variants, options.rounds)
            for name, values in measured.items():
                bare = "mpirun, true" if name.endswith("true") else "mpirun"
                over = np.array(values) - np.array(measured[bare])
                over = over[np.isfinite(over)]
                interval = ["", ""] if name == bare else [f"{np.median(over):+.2f}", median_interval(over, "+.2f")]
                table.add_row(str(np_), name, f"{np.nanmedian(values):.2f}", *interval)
    Console().print(table)


if __name__ == "__main__":
    main()
