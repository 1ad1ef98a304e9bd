"""Measure the gain of `hvscale tune` over the libraries' defaults and Horovod's autotune.

The job all-reduces EDSR's gradients, one rank per node; nodes are network namespaces with a shaped
link. After the search, fresh interleaved starts measure the gain. `python
benchmarks/tune_network.py --nodes 4 [--link 1gbit] [--model edsr] [--trials 16] [--trial-seconds
12] [--rounds 7] [--autotune] [--study DIR]`; it needs root.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from interleaved import print_speeds, run_interleaved
from network import WARM_UP_STEPS, Job, make_parser, mean_speed, set_arguments
from rich.console import Console

# Open MPI sees one rank per node and does not yield; hvscale knows that the nodes share a machine
# and lets it yield.
LIBRARY_DEFAULTS = ("--set", "yield_when_idle=off")
STEPS = 6
# Horovod 0.28.1's autotune: a sample is the median of this many readings, and it discards the first
# samples.
READINGS, WARM_UP_SAMPLES = 5, 3
LIBRARY, HVSCALE, TUNED = "defaults of Horovod and Open MPI", "defaults of hvscale launch", "tuned"


def autotune_speed(job: Job, steps: int, log: Path) -> float:
    """Images/s of the last steps of a job of `steps` steps with Horovod's autotune.

    Autotune takes as many samples as fit into the steps, then uses the best one.
    """
    samples = max(1, (steps - WARM_UP_STEPS - STEPS) // READINGS - WARM_UP_SAMPLES - 1)
    settings = {
        "HOROVOD_AUTOTUNE": 1,
        "HOROVOD_AUTOTUNE_LOG": log,
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": 1,
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": samples,
    }
    variables = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    return mean_speed(job.step_speeds(steps - WARM_UP_STEPS, *LIBRARY_DEFAULTS, *variables)[-STEPS:])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="edsr")
    parser.add_argument(
        "--autotune", action="store_true", help="also measure Horovod's autotune, with as many steps as the search"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, Path(folder), [options.model])
        study = job.tune()
        winner, steps = study.winner or {}, sum(trial.steps for trial in study.trials)
        variants = {
            LIBRARY: partial(job.speed, STEPS, *LIBRARY_DEFAULTS),
            HVSCALE: partial(job.speed, STEPS),
            TUNED: partial(job.speed, STEPS, *set_arguments(winner)),
        }
        speeds = run_interleaved(variants, options.rounds)
        title = f"{options.model}'s gradients, {options.nodes} nodes of {options.link}, tuned: {winner}"
        print_speeds(title, speeds, LIBRARY)
        if not options.autotune:
            return
        log = Path(folder) / "autotune.csv"
        autotuned, tuned = autotune_speed(job, steps, log), np.median(speeds[TUNED])
        log_end = "".join(log.read_text().splitlines(keepends=True)[-5:])
        Console().print(
            f"Horovod's autotune after {steps} steps, as many as the search had: {autotuned:.2f} images/s; "
            f"tuned {tuned:.2f}, {tuned / autotuned:.2f} times. The end of autotune's log:\n{log_end}",
            highlight=False,
        )


if __name__ == "__main__":
    main()
