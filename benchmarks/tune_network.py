"""What `hvscale tune` gains for EDSR's gradients over a network, against the libraries' defaults
and against Horovod's own autotune.

Nodes are network namespaces, one rank on each, with a shaped link: `python
benchmarks/tune_network.py --nodes 4 [--link 1gbit] [--model edsr] [--trials 16] [--trial-seconds
12] [--rounds 7] [--autotune] [--study DIR]`; it takes root. The gain is that of fresh starts in
turns, after the search.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from network import WARM_UP_STEPS, Job, arguments, settings_words, together
from rich.console import Console
from turns import in_turns, show

# Open MPI knows of one rank on each node, and so does not yield; hvscale, which knows that they are
# on one machine, tells it to.
LIBRARY_DEFAULTS = ("--set", "yield_when_idle=off")
STEPS = 6
# Of Horovod's autotune (0.28.1): a sample is the median of so many readings, and the first samples
# do not count.
READINGS, WARM_UP_SAMPLES = 5, 3
DEFAULTS, AS_STARTED, TUNED = "defaults of Horovod and Open MPI", "hvscale's start", "tuned"


def autotuned(job: Job, steps: int, log: Path) -> float:
    """Images/s at the end of so many steps with Horovod's autotune, which takes as many samples as
    fit into them, and then the best of these.
    """
    samples = max(1, (steps - WARM_UP_STEPS - STEPS) // READINGS - WARM_UP_SAMPLES - 1)
    asked = {
        "HOROVOD_AUTOTUNE": 1,
        "HOROVOD_AUTOTUNE_LOG": log,
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": 1,
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": samples,
    }
    variables = [word for name, value in asked.items() for word in ("--env", f"{name}={value}")]
    return together(job.speeds(steps - WARM_UP_STEPS, *LIBRARY_DEFAULTS, *variables)[-STEPS:])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="edsr")
    parser.add_argument("--autotune", action="store_true", help="also Horovod's own, given as many steps as the search")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, Path(folder), [options.model])
        study = job.tune()
        winner, steps = study.winner or {}, sum(trial.steps for trial in study.trials)
        variants = {
            DEFAULTS: partial(job.speed, STEPS, *LIBRARY_DEFAULTS),
            AS_STARTED: partial(job.speed, STEPS),
            TUNED: partial(job.speed, STEPS, *settings_words(winner)),
        }
        speeds = in_turns(variants, options.rounds)
        title = f"{options.model}'s gradients, {options.nodes} nodes of {options.link}, tuned: {winner}"
        show(title, speeds, DEFAULTS)
        if not options.autotune:
            return
        log = Path(folder) / "autotune.csv"
        last, tuned = autotuned(job, steps, log), np.median(speeds[TUNED])
        Console().print(
            f"Horovod's autotune at the end of {steps} steps, as many as the search had: {last:.2f} images/s; tuned {tuned:.2f}, "
            f"{tuned / last:.2f} times. The end of its log:\n{''.join(log.read_text().splitlines(keepends=True)[-5:])}",
            highlight=False,
        )


if __name__ == "__main__":
    main()
