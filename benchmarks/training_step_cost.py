"""Measure a profiler's overhead on a training step: none, hvprof, and Horovod's own timeline.

It trains the demo's EDSR. Run it on an idle machine with the environment's Python: `python
benchmarks/training_step_cost.py [--rounds 9]`. On two cores, use `--ranks 1`: two ranks disturb
each other more than a profiler does, and one rank makes the same calls.
"""

import argparse
import json
import shutil
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from interleaved import median_interval, run_interleaved
from rich.console import Console
from rich.table import Table

from hvscale.core.run_folder import RunFolder
from hvscale.launch.controller import launch
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.profiling.analyze.breakdown import breakdown
from hvscale.studies.profiled_launch import profiled_launch
from hvscale.trainer import demo_config

WARM_UP_STEPS = 50


def command(steps: int) -> list[str]:
    """The demo's training, limited by steps instead of seconds."""
    config = demo_config().model_copy(update={"seconds": None, "steps": steps})
    return ["hvscale", "train", *config.arguments()]


def run_once(variant: str, ranks: int, steps: int, folder: Path) -> RunFolder:
    path = folder / variant
    shutil.rmtree(path, ignore_errors=True)
    hooks = LaunchHooks(warn=lambda text: None)  # it would warn that the ranks share cores
    if variant == "hvprof":
        return profiled_launch(command(steps), LaunchOptions(np=ranks, run=path), hooks)
    env = (f"HOROVOD_TIMELINE={folder / 'timeline.json'}",) if variant == "timeline" else ()
    return launch(command(steps), LaunchOptions(np=ranks, run=path, env=env), hooks)


def median_step_seconds(run: RunFolder) -> float:
    lines = run.steps.read_text().splitlines()[WARM_UP_STEPS:]
    return float(np.median([json.loads(line)["seconds"] for line in lines]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="number of rounds, at least 2")
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    profilers = ("none", "hvprof", "timeline")
    calls: list[int] = []

    def measure(profiler: str) -> float:
        run = run_once(profiler, options.ranks, options.steps, Path(folder))
        if profiler == "hvprof":
            calls.append(sum(row.calls for row in breakdown(run).rows))
        return median_step_seconds(run)

    with tempfile.TemporaryDirectory() as folder:
        seconds = run_interleaved({name: partial(measure, name) for name in profilers}, options.rounds)
    table = Table(
        title=f"the demo's step, {options.ranks} rank(s), {options.rounds} interleaved rounds of {options.steps} steps"
    )
    for name in ("profiler", "median step, ms", "overhead, %", "95 % interval, %"):
        table.add_column(name, justify="left" if name == "profiler" else "right")
    for profiler in profilers:
        overhead = 100 * (np.array(seconds[profiler]) / np.array(seconds["none"]) - 1)
        interval = "-" if profiler == "none" else median_interval(overhead, "+.2f")
        table.add_row(profiler, f"{1000 * np.median(seconds[profiler]):.3f}", f"{np.median(overhead):+.2f}", interval)
    Console().print(table)
    calls_per_step = calls[-1] / options.ranks / options.steps
    print(f"{calls_per_step:.1f} recorded calls per step and rank; profiler_cost.py prints the overhead of one call")


if __name__ == "__main__":
    main()
