"""Measure the overhead of `hvscale bench` over a plain C loop, and the speed of our 16-bit sums.

The plain loop calls MPI_Allreduce with the same numbers of calls; all variants run interleaved on
two ranks. Run it with the environment's Python: `python benchmarks/bench_overhead.py [--rounds 7]`.
It needs mpicc.
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
from interleaved import median_interval, run_interleaved
from rich.console import Console
from rich.table import Table

PROGRAMS = Path(sys.executable).parent
SMALL, LARGE = 8, 16 << 20
# Bytes: warm-up calls, samples, calls per sample.
SCHEDULE = {SMALL: (1000, 20, 1000), LARGE: (5, 20, 2)}
BASELINE = "plain loop in C"


def plain_loop(program: Path) -> dict[int, float]:
    """Microseconds per call by bytes."""
    arguments = [str(number) for size, schedule in SCHEDULE.items() for number in (size, *schedule)]
    output = hvscale("launch", "--", str(program), *arguments)
    return dict(zip(SCHEDULE, (float(line.removeprefix("[0] ")) for line in output.splitlines()), strict=True))


def hvscale_bench(dtype: str, sizes: tuple[int, ...]) -> dict[int, float]:
    """Microseconds per call by bytes."""
    warmup, iterations = (
        f"1K:{small},{large}"
        for small, large in (
            (SCHEDULE[SMALL][0], SCHEDULE[LARGE][0]),
            (SCHEDULE[SMALL][1] * SCHEDULE[SMALL][2], SCHEDULE[LARGE][1] * SCHEDULE[LARGE][2]),
        )
    )
    options = ("-d", dtype, "--sizes", ",".join(map(str, sizes)), "-w", warmup, "-n", iterations)
    output = hvscale("bench allreduce", *options, "--in-place", "out", "--no-check", "--json")
    return {row["bytes"]: 1e6 * row["seconds"] for row in json.loads(output)["rows"]}


def hvscale(command: str, *arguments: str) -> str:
    """Run a command of hvscale on two ranks in a temporary run folder, and return its stdout."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            str(PROGRAMS / "hvscale"),
            *command.split(),
            "-np",
            "2",
            "--run",
            str(Path(folder) / "run"),
            *arguments,
        ]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "plain"
        source = Path(__file__).with_suffix(".c")
        subprocess.run([PROGRAMS / "mpicc", "-std=c11", "-O2", "-Wall", "-o", program, source], check=True)
        variants: dict[str, Callable[[], dict[int, float]]] = {
            BASELINE: partial(plain_loop, program),
            "hvscale bench": partial(hvscale_bench, "float32", (SMALL, LARGE)),
            "hvscale bench, float16": partial(hvscale_bench, "float16", (LARGE,)),
            "hvscale bench, bfloat16": partial(hvscale_bench, "bfloat16", (LARGE,)),
        }
        print_overhead(run_interleaved(variants, rounds))


def print_overhead(results: dict[str, list[dict[int, float]]]) -> None:
    """Print medians, and differences and ratios to the plain loop with their 95 % intervals."""
    table = Table(title="MPI_Allreduce on two ranks, medians of the rounds")
    for name in ("variant", "8 B, us", "overhead, us", "16 MiB, us", "times plain's bandwidth"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    baseline = results[BASELINE]
    for name, rows in results.items():
        small = [row[SMALL] for row in rows if SMALL in row]
        large = [row[LARGE] for row in rows]
        overhead = [own - row[SMALL] for own, row in zip(small, baseline, strict=False)]
        ratio = [row[LARGE] / own for own, row in zip(large, baseline, strict=True)]
        is_baseline = rows is baseline
        table.add_row(
            name,
            f"{np.median(small):.3f}" if small else "-",
            "-" if is_baseline or not small else with_interval(overhead),
            f"{np.median(large):.0f}",
            "-" if is_baseline else with_interval(ratio),
        )
    Console().print(table)


def with_interval(values: list[float]) -> str:
    return f"{np.median(values):.3f} ({median_interval(values, '.3f')})"


if __name__ == "__main__":
    main()
