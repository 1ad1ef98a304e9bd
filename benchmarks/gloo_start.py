"""How long ranks over Gloo take to find each other under `hvscale launch` and `horovodrun`.

All ranks import Horovod first and begin together. Run it on an idle machine with the environment's
Python: `python benchmarks/gloo_start.py [-np 4,16,32] [--rounds 5]`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from interleaved import median_interval, run_interleaved
from rich.console import Console
from rich.table import Table

from hvscale.core.numbers import parse_ranks

PROGRAMS = Path(sys.prefix) / "bin"
HANG_SECONDS = 600
# Each rank waits until all have imported Horovod, and writes how long hvd.init() takes.
PROGRAM = """
import os, pathlib, time
import horovod.torch as hvd
rank, size = os.environ["HOROVOD_RANK"], int(os.environ["HOROVOD_SIZE"])
pathlib.Path(f"{rank}.imported").touch()
while len(list(pathlib.Path().glob("*.imported"))) < size:
    time.sleep(0.1)
start = time.monotonic()
hvd.init()
seconds = time.monotonic() - start
pathlib.Path(f"{rank}.seconds").write_text(str(seconds))
hvd.shutdown()
"""
LAUNCHERS = {"horovodrun": ("horovodrun", "--gloo"), "hvscale launch": ("hvscale", "launch", "--mpi", "gloo")}


def slowest_init(launcher: tuple[str, ...], ranks: int) -> float:
    """Seconds of the slowest rank's hvd.init(). Raises CalledProcessError if the job fails."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        command = [*launcher, "-np", str(ranks), sys.executable, str(program)]
        environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
        subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True, timeout=HANG_SECONDS)
        return max(float(file.read_text()) for file in Path(folder).glob("*.seconds"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-np", "--np", type=parse_ranks, default=[4, 16, 32])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table = Table(title=f"slowest rank's hvd.init() over Gloo, {options.rounds} interleaved rounds")
    for name in ("np", "started by", "median, s", "min, s", "max, s", "times horovodrun", "95 % interval"):
        table.add_column(name, justify="left" if name == "started by" else "right")
    for np_ in options.np:
        measured = run_interleaved(
            {name: partial(slowest_init, launcher, np_) for name, launcher in LAUNCHERS.items()}, options.rounds
        )
        for name, seconds in measured.items():
            ratios = np.array(seconds) / np.array(measured["horovodrun"])
            figures = (f"{one(seconds):.2f}" for one in (np.median, min, max))
            interval = "-" if name == "horovodrun" else median_interval(ratios.tolist(), ".2f")
            table.add_row(str(np_), name, *figures, f"{np.median(ratios):.2f}", interval)
    Console().print(table)


if __name__ == "__main__":
    main()
