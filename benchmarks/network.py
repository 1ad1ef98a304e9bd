"""EDSR's gradients over an emulated network: jobs of `gradients.py`, one rank on each node, tuned
or started with some settings.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvscale.comm_tuning.tune.document import TuneDocument

HVSCALE = Path(sys.executable).with_name("hvscale")
GRADIENTS = Path(__file__).with_name("gradients.py")
WARM_UP_STEPS = 3


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--trial-seconds", type=float, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--study", type=Path, help="a study's folder to take the settings from, or to go on with")
    return parser


def settings_words(settings: dict[str, str]) -> list[str]:
    return [word for knob, value in settings.items() for word in ("--set", f"{knob}={value}")]


class Job:
    def __init__(self, options: argparse.Namespace, folder: Path, words: list[str]) -> None:
        """`words`: behind gradients.py. Ends the benchmark where network namespaces cannot be
        made.
        """
        if os.geteuid():
            raise SystemExit("network namespaces take root")
        self.options, self.folder, self.runs = options, folder, 0
        self.command = [sys.executable, str(GRADIENTS), *words]

    def tune(self, *more: str) -> TuneDocument:
        """The document of the study. An interrupted study in this folder is resumed."""
        study = self.options.study or self.folder / "study"
        bounds = ("--trials", str(self.options.trials), "--trial-seconds", str(self.options.trial_seconds))
        subprocess.run([*self._words("tune", study), *bounds, *more, "--", *self.command], check=True)
        return TuneDocument.model_validate_json((study / "tune.json").read_text())

    def speeds(self, steps: int, *more: str) -> NDArray[np.float64]:
        """Images/s of each step of a start, but for the first ones; NaN where it failed."""
        self.runs += 1
        run = self.folder / f"run-{self.runs:03d}"
        command = [*self.command, "--steps", str(WARM_UP_STEPS + steps)]
        started = subprocess.run(
            [*self._words("launch", run), *more, "--", *command], capture_output=True, text=True, check=False
        )
        if started.returncode:
            print(started.stderr, file=sys.stderr)
            return np.array([np.nan])
        lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
        return np.array([line["images"] / line["seconds"] for line in lines[WARM_UP_STEPS:]])

    def speed(self, steps: int, *more: str) -> float:
        """Of all its steps together."""
        return together(self.speeds(steps, *more))

    def _words(self, verb: str, run: Path) -> list[str]:
        nodes = str(self.options.nodes)
        placed = ("-np", nodes, "--placement", "netns", "--nodes", nodes, "--link", self.options.link)
        return [str(HVSCALE), verb, *placed, "--run", str(run)]


def together(speeds: NDArray[np.float64]) -> float:
    return float(1 / np.mean(1 / speeds))
