"""Measure how soon a job that tunes itself is as fast as one with offline-tuned settings.

The job all-reduces a model's gradients, one rank per node; nodes are network namespaces with a
shaped link. Fresh interleaved starts compare the defaults, the settings of `hvscale tune` from the
start, Horovod's autotune, `--autotune` without memory, and with the memory of earlier starts.
`python benchmarks/autotune.py --nodes 4 [--link 1gbit] [--model edsr] [--steps 300] [--rounds 5]
[--study DIR] [--trials 16] [--trial-seconds 12]`; it needs root.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from interleaved import print_speeds, run_interleaved
from network import WARM_UP_STEPS, Job, make_parser, mean_speed, set_arguments
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hvscale.comm_tuning.autotune.memory import VARIABLE

Speeds = NDArray[np.float64]
DEFAULTS, OFFLINE, HOROVOD = "defaults", "settings of hvscale tune", "Horovod's autotune"
COLD, WARM = "--autotune", "--autotune with memory"
GOAL = 0.95  # of the offline-tuned throughput
WINDOW = 5  # steps of a median
LAST = 20  # steps of the final throughput


def with_memory(job: Job, steps: int, memory: Path, is_cold: bool) -> Speeds:
    """Images/s of each step of a job that tunes itself; `is_cold`: it remembers nothing."""
    if is_cold:
        shutil.rmtree(memory, ignore_errors=True)
    os.environ[VARIABLE] = str(memory)
    return job.step_speeds(steps, "--autotune")


def steps_until(speeds: Speeds, goal: float) -> float:
    """The first step from which the median of a few steps reaches the goal; NaN if none does."""
    if len(speeds) < WINDOW:
        return np.nan
    medians = np.median(np.lib.stride_tricks.sliding_window_view(speeds, WINDOW), axis=1)
    reached = np.flatnonzero(medians >= goal)
    return float(WARM_UP_STEPS + reached[0]) if len(reached) else np.nan


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="edsr")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, Path(folder), [options.model])
        winner = job.tune().winner or {}
        autotune = ("--env", "HOROVOD_AUTOTUNE=1", "--env", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=1")
        steps, memory = options.steps, Path(folder) / "memory"
        with_memory(job, steps, memory, is_cold=True)
        variants: dict[str, Callable[[], Speeds]] = {
            DEFAULTS: partial(job.step_speeds, steps),
            OFFLINE: partial(job.step_speeds, steps, *set_arguments(winner)),
            HOROVOD: partial(job.step_speeds, steps, *autotune),
            COLD: partial(with_memory, job, steps, Path(folder) / "cold", is_cold=True),
            WARM: partial(with_memory, job, steps, memory, is_cold=False),
        }
        found = run_interleaved(variants, options.rounds)
    title = f"{options.model}'s gradients, {options.nodes} nodes of {options.link}, {steps} steps; tuned: {winner}"
    print_speeds(f"{title}: all steps", {name: [mean_speed(one) for one in of] for name, of in found.items()}, DEFAULTS)
    last = {name: [mean_speed(one[-LAST:]) for one in of] for name, of in found.items()}
    print_speeds(f"{title}: the last {LAST} steps", last, DEFAULTS)
    goal = GOAL * float(np.median(last[OFFLINE]))
    table = Table("variant", f"steps until {goal:.2f} images/s ({GOAL:.0%} of {OFFLINE}), of each start")
    for name, of in found.items():
        table.add_row(name, ", ".join(f"{steps_until(one, goal):.0f}" for one in of))
    Console().print(table)


if __name__ == "__main__":
    main()
