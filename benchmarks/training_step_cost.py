"""What a profile costs a training step: the demo's EDSR with no profiler, with hvprof, and with
Horovod's own timeline.

Run it on a machine that does nothing else, with the environment's Python: `python
benchmarks/training_step_cost.py [--rounds 9]`. Two ranks on two cores hinder each other far more
than any profiler does: there, `--ranks 1` makes the same calls and steps that repeat.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

from hvscale.core.run_folder import RunFolder
from hvscale.launch.controller import launch
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.profiling.analyze import breakdown
from hvscale.studies.profiled_launch import profiled_launch
from hvscale.trainer import demo_config

WARM_UP_STEPS = 50


def command(steps: int) -> list[str]:
    """The demo's training for a number of steps, not of seconds."""
    config = demo_config().model_copy(update={"seconds": None, "steps": steps})
    return ["hvscale", "train", *config.arguments()]


def quiet(text: str) -> None:
    """The ranks share the cores here as in every variant."""


def run_once(variant: str, ranks: int, steps: int, folder: Path) -> RunFolder:
    path = folder / variant
    shutil.rmtree(path, ignore_errors=True)
    if variant == "hvprof":
        return profiled_launch(command(steps), LaunchOptions(np=ranks, run=path), LaunchHooks(warn=quiet))
    env = (f"HOROVOD_TIMELINE={folder / 'timeline.json'}",) if variant == "timeline" else ()
    return launch(command(steps), LaunchOptions(np=ranks, run=path, env=env), LaunchHooks(warn=quiet))


def median_step(run: RunFolder) -> float:
    """Seconds."""
    lines = run.steps.read_text().splitlines()[WARM_UP_STEPS:]
    return float(np.median([json.loads(line)["seconds"] for line in lines]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="two or more")
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    variants = ("none", "hvprof", "timeline")
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    calls_per_step = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number in track(range(arguments.rounds), "rounds"):
            # Another one begins each round: what a machine does meanwhile meets all of them.
            for variant in np.roll(variants, number).tolist():
                run = run_once(variant, arguments.ranks, arguments.steps, Path(folder))
                seconds[variant].append(median_step(run))
                if variant == "hvprof":
                    calls_per_step = sum(row.calls for row in breakdown(run).rows) / arguments.ranks / arguments.steps
    table = Table(
        title=f"the demo's step, {arguments.ranks} rank(s), {arguments.rounds} rounds of {arguments.steps} steps in turns"
    )
    for name in ("profiler", "median step, ms", "against none, %", "95 % interval, %"):
        table.add_column(name, justify="left" if name == "profiler" else "right")
    for variant in variants:
        cost = 100 * (np.array(seconds[variant]) / np.array(seconds["none"]) - 1)
        interval = "-"
        if variant != "none":
            low, high = stats.bootstrap((cost,), np.median, random_state=0).confidence_interval
            interval = f"{low:+.2f} to {high:+.2f}"
        table.add_row(variant, f"{1000 * np.median(seconds[variant]):.3f}", f"{np.median(cost):+.2f}", interval)
    Console().print(table)
    print(
        f"{calls_per_step:.1f} recorded calls a step and rank: times what profiler_cost.py prints, the profiler's own part"
    )


if __name__ == "__main__":
    main()
