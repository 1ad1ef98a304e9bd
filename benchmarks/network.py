"""Jobs of `gradients.py` over an emulated network, one rank per node, for the tuning benchmarks."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvscale.comm_tuning.tune.document import TuneDocument

HVSCALE = Path(sys.executable).with_name("hvscale")
GRADIENTS = Path(__file__).with_name("gradients.py")
WARM_UP_STEPS = 3
BATCH_SIZE = 4  # of gradients.py
RANKS_IN_MEMORY = 2  # without nodes


def make_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--trial-seconds", type=float, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--study", type=Path, help="folder of a tuning study to resume, or to take the settings from")
    return parser


def set_arguments(settings: dict[str, str]) -> list[str]:
    return [word for knob, value in settings.items() for word in ("--set", f"{knob}={value}")]


class Job:
    def __init__(self, options: argparse.Namespace, folder: Path, arguments: list[str]) -> None:
        """`arguments`: of gradients.py. Raises SystemExit without root."""
        if os.geteuid():
            raise SystemExit("network namespaces need root: run this benchmark as root")
        self.options, self.folder, self.run_count = options, folder, 0
        self.command = [sys.executable, str(GRADIENTS), *arguments]

    def tune(self, *more: str) -> TuneDocument:
        """Run or resume the tuning study and return its document."""
        study = self.options.study or self.folder / "study"
        limits = ("--trials", str(self.options.trials), "--trial-seconds", str(self.options.trial_seconds))
        subprocess.run([*self._arguments("tune", study), *limits, *more, "--", *self.command], check=True)
        return TuneDocument.model_validate_json((study / "tune.json").read_text())

    def step_speeds(self, steps: int, *more: str) -> NDArray[np.float64]:
        """Launch the job once; return images/s of each step after warm-up, NaN if it failed."""
        self.run_count += 1
        run = self.last_run
        shutil.rmtree(run, ignore_errors=True)
        command = [*self.command, "--steps", str(WARM_UP_STEPS + steps)]
        done = subprocess.run(
            [*self._arguments("launch", run), *more, "--", *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return np.array([np.nan])
        lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
        return np.array([line["images"] / line["seconds"] for line in lines[WARM_UP_STEPS:]])

    @property
    def last_run(self) -> Path:
        return self.folder / f"run-{self.run_count:03d}"

    @property
    def images_of_a_step(self) -> int:
        return BATCH_SIZE * (self.options.nodes or RANKS_IN_MEMORY)

    def speed(self, steps: int, *more: str) -> float:
        """Images/s over all steps after warm-up."""
        return mean_speed(self.step_speeds(steps, *more))

    def _arguments(self, command: str, run: Path) -> list[str]:
        nodes = str(self.options.nodes)
        placement = ["-np", nodes, "--placement", "netns", "--nodes", nodes, "--link", self.options.link]
        if not self.options.nodes:
            placement = ["-np", str(RANKS_IN_MEMORY)]
        return [str(HVSCALE), command, *placement, "--run", str(run)]


def mean_speed(speeds: NDArray[np.float64]) -> float:
    """Harmonic mean: all images over all seconds."""
    return float(1 / np.mean(1 / speeds))
