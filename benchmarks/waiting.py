"""How long a step takes where ranks share cores and poll, or sleep, in Horovod's synchronize().

Run it on an idle machine with the environment's Python: `python benchmarks/waiting.py [-np 2,4]
[--mpi gloo,openmpi] [--rounds 5]`. A step sends 16 small gradients.
"""

import argparse
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
from hvscale.launch.waiting import POLL, SLEEP, VARIABLE

PROGRAMS = Path(sys.prefix) / "bin"
HANG_SECONDS = 600
WARM_UP, STEPS = 5, 30
# Ranks rest before each step as if they waited for data.
PROGRAM = f"""
import time, torch, horovod.torch as hvd
hvd.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
data = torch.randn(8, 64)
for step in range({WARM_UP + STEPS}):
    if step == {WARM_UP}:
        start = time.monotonic()
    optimizer.zero_grad()
    time.sleep(0.01)
    model(data).square().mean().backward()
    optimizer.step()
if hvd.rank() == 0:
    print("a step:", (time.monotonic() - start) / {STEPS}, "s")
hvd.shutdown()
"""


def seconds_of_step(mpi: str, ranks: int, wait: str) -> float:
    """The mean over rank 0's steps. Raises CalledProcessError if the job fails."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        options = ("-np", str(ranks), "--mpi", mpi, "--env", f"{VARIABLE}={wait}", "--run", "job")
        command = [str(PROGRAMS / "hvscale"), "launch", *options, "--", sys.executable, str(program)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=HANG_SECONDS)
    return float(done.stdout.partition("a step: ")[2].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-np", "--np", type=parse_ranks, default=[2, 4])
    parser.add_argument("--mpi", type=lambda names: names.split(","), default=["gloo", "openmpi"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table = Table(title=f"milliseconds of a step, {options.rounds} interleaved rounds")
    for name in ("library", "np", POLL, SLEEP, f"{POLL} / {SLEEP}", "95 % interval"):
        table.add_column(name, justify="left" if name == "library" else "right")
    for mpi in options.mpi:
        for ranks in options.np:
            variants = {wait: partial(seconds_of_step, mpi, ranks, wait) for wait in (POLL, SLEEP)}
            measured = run_interleaved(variants, options.rounds)
            ratios = np.array(measured[POLL]) / np.array(measured[SLEEP])
            times = (f"{np.median(measured[wait]) * 1000:.1f}" for wait in (POLL, SLEEP))
            table.add_row(mpi, str(ranks), *times, f"{np.median(ratios):.2f}", median_interval(ratios.tolist(), ".2f"))
    Console().print(table)


if __name__ == "__main__":
    main()
