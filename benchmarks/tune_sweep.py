"""`hvscale tune` against an exhaustive sweep of the same space: how near its choice comes to the
best, and in how many of the sweep's steps.

EDSR-baseline's gradients over a shaped network of namespaces: `python benchmarks/tune_sweep.py
[--nodes 4] [--link 1gbit] [--trials 4] [--trial-seconds 1.2] [--rounds 7]`; it takes root. What the
two have found is measured again on fresh starts, in turns, because the best of many trials was also
the luckiest.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from network import WARM_UP_STEPS, Job, arguments, settings_words
from rich.console import Console
from rich.progress import track
from turns import in_turns, show

from hvscale.comm_tuning.knobs.library import Target
from hvscale.comm_tuning.tune.job_space import space_of

KNOBS = "allreduce_algorithm,eager_threshold"
STEPS = 10  # as many as a trial of the search has in its seconds


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(trials=4, trial_seconds=1.2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, Path(folder), ["edsr-baseline", "--compute-seconds", "0.1"])
        study = job.tune("--knobs", KNOBS)
        used = sum(trial.steps for trial in study.trials)
        library, transport = study.library, study.transport or ""
        if library is None:
            raise SystemExit("the search has measured nothing")
        space = space_of(study.space, Target(library.flavour, library.version, transport, study.command, {}))
        points = list(space.points())
        np.random.default_rng(1).shuffle(points)  # what the machine does meanwhile is not to meet neighbours
        found = [job.speed(STEPS, *settings_words(point)) for point in track(points, "the sweep")]
        best = points[int(np.nanargmax(found))]
        swept = len(points) * (STEPS + WARM_UP_STEPS)
        winner = study.winner or {}
        variants = {
            f"the sweep's best, {best}": partial(job.speed, STEPS, *settings_words(best)),
            f"the search's, {winner}": partial(job.speed, STEPS, *settings_words(winner)),
            "the defaults": partial(job.speed, STEPS),
        }
        speeds = in_turns(variants, options.rounds)
        show(f"{len(points)} points, {options.nodes} nodes of {options.link}", speeds, next(iter(variants)))
        Console().print(
            f"steps: {swept} of the sweep, {used} of the search, {used / swept:.2f} of it; the sweep's trials range from "
            f"{np.nanmin(found):.1f} to {np.nanmax(found):.1f} images/s, {int(np.isnan(found).sum())} failed"
        )


if __name__ == "__main__":
    main()
