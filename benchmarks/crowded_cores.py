"""How all-reduces slow down where more ranks share a core: exponents for the prediction's model.

Ranks are pinned to the cores in turn, with all their threads as in a replay, and by default get
them one after the other. From the fewest to the most ranks, the time of a short all-reduce for each
message, and of a large one for each byte that a rank sends, grow with a power of the ranks per
core. Run it on an idle machine: `python benchmarks/crowded_cores.py [-np 4,8,16] [--placement
netns]`.
"""

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvscale.core.numbers import parse_ranks
from hvscale.prediction.model.measured_costs import ALGORITHMS

HVSCALE = Path(sys.executable).with_name("hvscale")
SHORT, LARGE = 1 << 16, 1 << 24  # bytes
LIBRARIES = {
    ("Gloo", "ring"): ("--mpi", "gloo"),
    ("Open MPI", "ring"): ("--set", "allreduce_algorithm=ring"),
    ("Open MPI", "halving and doubling"): ("--set", "allreduce_algorithm=reduce_scatter_allgather"),
}
# Rank 0 prints, for each size, the median over rounds of the seconds of an all-reduce.
PROGRAM = f"""
import json, os, statistics, time
import horovod.torch as hvd, torch
hvd.init()
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {{hvd.rank() % os.cpu_count()}})
torch.set_num_threads(1)
found = {{}}
for size, rounds in (({SHORT}, 7), ({LARGE}, 4)):
    tensors = [torch.zeros(size // 4) for _ in range(10)]
    seconds = []
    for _ in range(rounds):
        hvd.allreduce(torch.zeros(1))
        start = time.perf_counter()
        for handle in [hvd.allreduce_async_(one, name=f"{{size}}.{{n}}") for n, one in enumerate(tensors)]:
            hvd.synchronize(handle)
        seconds.append((time.perf_counter() - start) / len(tensors))
    found[size] = statistics.median(seconds[1:])
if hvd.rank() == 0:
    print("seconds", json.dumps(found))
"""


def seconds_by_size(options: argparse.Namespace, library: tuple[str, ...], ranks: int) -> dict[int, float]:
    """Start the ranks. Raises SystemExit if the job fails."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        place = ("--placement", "netns", "--nodes", str(ranks)) if options.placement == "netns" else ()
        variables = ("--env", "OMP_NUM_THREADS=1", "--env", "HOROVOD_FUSION_THRESHOLD=0")
        launch = (str(HVSCALE), "launch", "-np", str(ranks), *library, *place, *variables, "--run", f"{folder}/run")
        command = [*shlex.split(options.under), *launch, "--", sys.executable, str(program)]
        done = subprocess.run(command, capture_output=True, text=True)
        found = re.search(r"seconds (\{.*\})", done.stdout)
        if done.returncode or found is None:
            raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
        return {int(size): seconds for size, seconds in json.loads(found[1]).items()}


def exponent(costs: list[float], ranks: list[int]) -> float:
    """The power of the ranks per core with which a cost grows from the first np to the last."""
    return math.log(costs[-1] / costs[0]) / math.log(ranks[-1] / ranks[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-np", "--np", type=parse_ranks, default=[4, 8, 16])
    parser.add_argument("--placement", choices=["host", "netns"], default="host")
    parser.add_argument("--under", default="chrt --rr 1", help="start each launch under this command")
    options = parser.parse_args()
    if len(options.np) < 2:
        parser.error("-np: give two numbers of ranks or more, such as 4,16")
    if min(options.np) < 2 * (os.cpu_count() or 1):
        parser.error(f"-np: with fewer than two ranks for each of the {os.cpu_count()} cores, cores would be idle")
    table = Table(title=f"all-reduces where ranks share {os.cpu_count()} cores, {options.placement}")
    for name in ("library", "algorithm", "np", "64 KiB, ms", "a message, ms", "16 MiB, ms", "a byte sent, ns"):
        table.add_column(name, justify="left" if name in ("library", "algorithm") else "right")
    for (name, algorithm), library in LIBRARIES.items():
        starts, copies = [], []
        for ranks in options.np:
            found = seconds_by_size(options, library, ranks)
            sent = ALGORITHMS[algorithm](ranks)
            starts.append(found[SHORT] / sent.messages)
            copies.append((found[LARGE] - found[SHORT]) / sent.bytes / (LARGE - SHORT))
            times = (found[SHORT] * 1e3, starts[-1] * 1e3, found[LARGE] * 1e3, copies[-1] * 1e9)
            table.add_row(name, algorithm, str(ranks), *(f"{one:.3g}" for one in times))
        table.add_row(
            name,
            algorithm,
            "power",
            "",
            f"{exponent(starts, options.np):.2f}",
            "",
            f"{exponent(copies, options.np):.2f}",
        )
        table.add_section()
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
