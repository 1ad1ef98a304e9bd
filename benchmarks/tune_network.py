"""What `hvscale tune` gains for EDSR's gradients over a network, against the libraries' defaults and against Horovod's own autotune.

Nodes are network namespaces, one rank on each, with a shaped link: `python benchmarks/tune_network.py --nodes 4 [--link 1gbit] [--trials 16]
[--trial-seconds 12] [--rounds 7] [--study DIR]`; it takes root. The gain is that of fresh starts in turns, after the search.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from turns import in_turns, show

from hvscale.comm_tuning.tune_document import TuneDocument

HVSCALE = Path(sys.executable).with_name("hvscale")
GRADIENTS = Path(__file__).with_name("gradients.py")
# Open MPI knows of one rank on each node, and so does not yield; hvscale, which knows that they are on one machine, tells it to.
LIBRARY_DEFAULTS = ("--set", "yield_when_idle=off")
WARM_UP_STEPS, STEPS = 3, 10
SAMPLES = (
    30  # of Horovod's autotune: three to warm up, at most 20 by Bayesian optimisation, the rest with what it found
)
DEFAULTS, AS_STARTED, TUNED, AUTOTUNE = (
    "defaults of Horovod and Open MPI",
    "hvscale's start",
    "tuned",
    "Horovod's autotune",
)


class Job:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder, self.runs = options, folder, 0

    def words(self, verb: str, run: Path, *more: str) -> list[str]:
        nodes = str(self.options.nodes)
        placed = ("-np", nodes, "--placement", "netns", "--nodes", nodes, "--link", self.options.link)
        return [str(HVSCALE), verb, *placed, "--run", str(run), *more]

    def tune(self) -> TuneDocument:
        """The study's document; one that was broken off is gone on with."""
        study = self.options.study or self.folder / "study"
        bounds = ("--trials", str(self.options.trials), "--trial-seconds", str(self.options.trial_seconds))
        command = (sys.executable, str(GRADIENTS), self.options.model)
        subprocess.run([*self.words("tune", study, *bounds), "--", *command], check=True)
        return TuneDocument.model_validate_json((study / "tune.json").read_text())

    def speeds(self, steps: int, *more: str) -> np.ndarray:
        """Images/s of each step of a start, but for the first ones."""
        self.runs += 1
        run = self.folder / f"run-{self.runs:03d}"
        command = (sys.executable, str(GRADIENTS), self.options.model, "--steps", str(WARM_UP_STEPS + steps))
        started = subprocess.run(
            [*self.words("launch", run, *more), "--", *command], capture_output=True, text=True, check=False
        )
        if started.returncode:
            raise SystemExit(started.stderr)
        lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
        return np.array([line["images"] / line["seconds"] for line in lines[WARM_UP_STEPS:]])

    def speed(self, *more: str) -> float:
        """Of all its steps together."""
        return float(1 / np.mean(1 / self.speeds(STEPS, *more)))

    def autotuned(self, steps: int) -> float:
        """Images/s at the end of so many steps with Horovod's autotune."""
        log = self.folder / "autotune.csv"
        asked = {
            "HOROVOD_AUTOTUNE": 1,
            "HOROVOD_AUTOTUNE_LOG": log,
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": max(1, steps // SAMPLES),
        }
        variables = [word for name, value in asked.items() for word in ("--env", f"{name}={value}")]
        found = self.speeds(steps - WARM_UP_STEPS, *LIBRARY_DEFAULTS, *variables)
        Console().print(f"its log:\n{log.read_text()}", highlight=False)
        return float(1 / np.mean(1 / found[-STEPS:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--model", default="edsr")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--trial-seconds", type=float, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--study", type=Path, help="a study's folder to take the settings from, or to go on with")
    options = parser.parse_args()
    if os.geteuid():
        raise SystemExit("network namespaces take root")
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, Path(folder))
        study = job.tune()
        winner, steps = study.winner or {}, sum(trial.steps for trial in study.trials)
        tuned = [word for knob, value in winner.items() for word in ("--set", f"{knob}={value}")]
        variants = {
            DEFAULTS: partial(job.speed, *LIBRARY_DEFAULTS),
            AS_STARTED: job.speed,
            TUNED: partial(job.speed, *tuned),
        }
        speeds = in_turns(variants, options.rounds)
        show(f"{options.model}'s gradients, {options.nodes} nodes of {options.link}, tuned: {winner}", speeds, DEFAULTS)
        last = job.autotuned(steps)
        Console().print(
            f"{AUTOTUNE}, {steps} steps as in the search: {last:.2f} images/s at its end, and {TUNED} "
            f"{np.median(speeds[TUNED]):.2f}: {np.median(speeds[TUNED]) / last:.2f} times"
        )


if __name__ == "__main__":
    main()
