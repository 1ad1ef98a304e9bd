"""Compare the choice and cost of `hvscale tune` with an exhaustive sweep of the same space.

The job all-reduces EDSR-baseline's gradients over a shaped network of namespaces. The best of many
trials was also lucky, so fresh interleaved starts measure both choices again. `python
benchmarks/tune_sweep.py [--nodes 4] [--link 1gbit] [--trials 4] [--trial-seconds 1.2] [--rounds
7]`; it needs root.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from interleaved import print_speeds, run_interleaved
from network import WARM_UP_STEPS, Job, make_parser, set_arguments
from rich.console import Console
from rich.progress import track

from hvscale.comm_tuning.knobs.library import Target
from hvscale.comm_tuning.tune.job_space import space_of

KNOBS = "allreduce_algorithm,eager_threshold"
STEPS = 10  # about the steps of a trial of the search


def main() -> None:
    parser = make_parser(__doc__)
    parser.set_defaults(trials=4, trial_seconds=1.2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, Path(folder), ["edsr-baseline", "--compute-seconds", "0.1"])
        study = job.tune("--knobs", KNOBS)
        search_steps = sum(trial.steps for trial in study.trials)
        library, transport = study.library, study.transport or ""
        if library is None:
            raise SystemExit("the search finished no trial")
        space = space_of(study.space, Target(library.flavour, library.version, transport, study.command, {}))
        points = list(space.points())
        np.random.default_rng(1).shuffle(points)  # a slow phase of the machine must not hit neighbouring points
        speeds_of_points = [job.speed(STEPS, *set_arguments(point)) for point in track(points, "sweep")]
        best = points[int(np.nanargmax(speeds_of_points))]
        sweep_steps = len(points) * (STEPS + WARM_UP_STEPS)
        winner = study.winner or {}
        variants = {
            f"the sweep's best, {best}": partial(job.speed, STEPS, *set_arguments(best)),
            f"the search's, {winner}": partial(job.speed, STEPS, *set_arguments(winner)),
            "the defaults": partial(job.speed, STEPS),
        }
        speeds = run_interleaved(variants, options.rounds)
        print_speeds(f"{len(points)} points, {options.nodes} nodes of {options.link}", speeds, next(iter(variants)))
        Console().print(
            f"steps: sweep {sweep_steps}, search {search_steps}, ratio {search_steps / sweep_steps:.2f}; the sweep's points range from "
            f"{np.nanmin(speeds_of_points):.1f} to {np.nanmax(speeds_of_points):.1f} images/s, {int(np.isnan(speeds_of_points).sum())} failed"
        )


if __name__ == "__main__":
    main()
