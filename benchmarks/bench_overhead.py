"""What `hvscale bench` adds to a plain loop around MPI_Allreduce in C, and what our sums of 16 bits
cost, all in turns, two ranks.

Run it with the environment's Python: `python benchmarks/bench_overhead.py [--rounds 7]`. It needs
mpicc.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

PROGRAMS = Path(sys.executable).parent
SMALL, LARGE = 8, 16 << 20
# Warm-up, samples, calls in each.
SCHEDULE = {SMALL: (1000, 20, 1000), LARGE: (5, 20, 2)}


def plain(program: Path) -> dict[int, float]:
    """Microseconds by size."""
    words = [str(word) for size, schedule in SCHEDULE.items() for word in (size, *schedule)]
    said = started("launch", "--", str(program), *words)
    return dict(zip(SCHEDULE, (float(line.removeprefix("[0] ")) for line in said.splitlines()), strict=True))


def ours(dtype: str, sizes: tuple[int, ...]) -> dict[int, float]:
    warmup, iterations = (
        f"1K:{small},{large}"
        for small, large in (
            (SCHEDULE[SMALL][0], SCHEDULE[LARGE][0]),
            (SCHEDULE[SMALL][1] * SCHEDULE[SMALL][2], SCHEDULE[LARGE][1] * SCHEDULE[LARGE][2]),
        )
    )
    asked = ("-d", dtype, "--sizes", ",".join(map(str, sizes)), "-w", warmup, "-n", iterations)
    said = started("bench allreduce", *asked, "--in-place", "out", "--no-check", "--json")
    return {row["bytes"]: 1e6 * row["seconds"] for row in json.loads(said)["rows"]}


def started(command: str, *words: str) -> str:
    """What a command of hvscale prints on two ranks, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [PROGRAMS / "hvscale", *command.split(), "-np", "2", "--run", str(Path(folder) / "run"), *words]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "plain"
        source = Path(__file__).with_suffix(".c")
        subprocess.run([PROGRAMS / "mpicc", "-std=c11", "-O2", "-Wall", "-o", program, source], check=True)
        variants: dict[str, Callable[[], dict[int, float]]] = {
            "plain loop in C": partial(plain, program),
            "hvscale bench": partial(ours, "float32", (SMALL, LARGE)),
            "hvscale bench, float16": partial(ours, "float16", (LARGE,)),
            "hvscale bench, bfloat16": partial(ours, "bfloat16", (LARGE,)),
        }
        found: dict[str, list[dict[int, float]]] = {name: [] for name in variants}
        for number in track(range(rounds), "rounds"):
            for name in np.roll(list(variants), number).tolist():
                found[name].append(variants[name]())
    show(found)


def show(found: dict[str, list[dict[int, float]]]) -> None:
    """Medians over the rounds, and differences and ratios to the plain loop with their 95 %
    bootstrap intervals.
    """
    table = Table(title="MPI_Allreduce on two ranks, medians of the rounds")
    for name in ("variant", "8 B, us", "more than plain, us", "16 MiB, us", "times plain's bandwidth"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    base = found["plain loop in C"]
    for name, rows in found.items():
        small = [row[SMALL] for row in rows if SMALL in row]
        large = [row[LARGE] for row in rows]
        added = [mine - row[SMALL] for mine, row in zip(small, base, strict=False)]
        ratio = [row[LARGE] / mine for mine, row in zip(large, base, strict=True)]
        is_base = rows is base
        table.add_row(
            name,
            f"{np.median(small):.3f}" if small else "-",
            "-" if is_base or not small else interval(added, ".3f"),
            f"{np.median(large):.0f}",
            "-" if is_base else interval(ratio, ".3f"),
        )
    Console().print(table)


def interval(values: list[float], form: str) -> str:
    median = f"{np.median(values):{form}}"
    if len(values) < 2:
        return median
    low, high = stats.bootstrap((values,), np.median, random_state=0).confidence_interval
    return f"{median} ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    main()
