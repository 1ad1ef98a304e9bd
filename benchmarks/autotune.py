"""Measure how soon a job that tunes itself is as fast as one with offline-tuned settings.

The job all-reduces a model's gradients, one rank per node; nodes are network namespaces with a
shaped link (`--nodes 0`: two ranks in shared memory). Fresh interleaved starts compare the
defaults, the settings of `hvscale tune` from the start, Horovod's autotune, `--autotune` without
memory, and with the memory of an earlier start. Each start makes `--steps` steps; what it would
make in the rest of ten minutes follows from its last steps. With `--broadcast MIB` each step also
broadcasts so much.
`python benchmarks/autotune.py FOLDER --nodes 4 [--link 1gbit] [--model edsr] [--steps 200]
[--rounds 3] [--trials 16] [--trial-seconds 12] [--variants ...]`; it needs root. FOLDER keeps the
study and every start, and the next call resumes.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
from network import WARM_UP_STEPS, Job, make_parser, mean_speed, set_arguments
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hvscale.comm_tuning.autotune.memory import VARIABLE
from hvscale.core.autotune_result import read_autotune_result
from hvscale.core.run_folder import RunFolder

Speeds = NDArray[np.float64]
DEFAULTS, OFFLINE, HOROVOD = "defaults", "settings of hvscale tune", "Horovod's autotune"
COLD, WARM = "autotune", "autotune with memory"
VARIANTS = (DEFAULTS, OFFLINE, HOROVOD, COLD, WARM)
GOAL = 0.95  # of the offline-tuned throughput
WINDOW = 5  # steps of a median
LAST = 20  # steps of the final throughput
SECONDS = 600.0


class Starts:
    """The finished starts in FOLDER/starts.jsonl: images/s of their steps after the warm-up."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.file, self.job, self.memory = folder / "starts.jsonl", job, folder / "memory"
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.done: dict[tuple[str, int], Speeds] = {
            (one["variant"], one["round"]): np.array(one["speeds"]) for one in map(json.loads, lines)
        }

    def measure(self, variant: str, number: int, winner: dict[str, str], steps: int) -> None:
        if (variant, number) in self.done:
            return
        options: tuple[str, ...] = ()
        os.environ[VARIABLE] = str(self.memory)
        if variant == OFFLINE:
            options = tuple(set_arguments(winner))
        elif variant == HOROVOD:
            options = ("--env", "HOROVOD_AUTOTUNE=1", "--env", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=1")
        elif variant in (COLD, WARM):
            options = ("--autotune",)
        if variant == COLD:  # the next start with memory has what this one remembers
            shutil.rmtree(self.memory, ignore_errors=True)
        speeds = self.job.step_speeds(steps, *options)
        if np.isnan(speeds).any():
            raise SystemExit(f"a start failed ({variant}); the next call resumes with it")
        self.done[variant, number] = speeds
        about = {"variant": variant, "round": number, "said": self.said() if variant in (COLD, WARM) else ""}
        with self.file.open("a") as stream:
            stream.write(json.dumps({**about, "speeds": speeds.tolist()}) + "\n")

    def said(self) -> str:
        """What the last start found."""
        found = read_autotune_result(RunFolder(self.job.last_run))
        if found is None:
            return "nothing"
        settings = " ".join(f"{knob}={value}" for knob, value in found.settings.items())
        return f"{found.state} {settings or found.reason}, {found.steps} steps, lost {found.lost_seconds:.2f} s"

    def of(self, variant: str) -> list[Speeds]:
        return [speeds for (name, _), speeds in self.done.items() if name == variant]


def steps_until(speeds: Speeds, goal: float) -> float:
    """The first step from which the median of a few steps reaches the goal; NaN if none does."""
    if len(speeds) < WINDOW:
        return np.nan
    medians = np.median(np.lib.stride_tricks.sliding_window_view(speeds, WINDOW), axis=1)
    reached = np.flatnonzero(medians >= goal)
    return float(WARM_UP_STEPS + reached[0]) if len(reached) else np.nan


def images_after(speeds: Speeds, images: int, seconds: float) -> float:
    """Images in so many seconds; what was not measured has the speed of the last steps."""
    times = np.cumsum(images / speeds)
    if times[-1] < seconds:
        return float(images * len(speeds) + (seconds - times[-1]) * mean_speed(speeds[-LAST:]))
    return float(images * np.searchsorted(times, seconds))


def table(title: str, starts: Starts, images: int, phase: int) -> Table:
    """One row for each variant; medians of its starts."""
    goal = GOAL * float(np.median([mean_speed(one[-LAST:]) for one in starts.of(OFFLINE)]))
    baseline = float(np.median([mean_speed(one[:phase]) for one in starts.of(DEFAULTS)]))
    found = Table(title=title, caption=f"goal: {goal:.2f} images/s, {GOAL:.0%} of the {OFFLINE}")
    for name in (
        "variant",
        "images in 10 min",
        f"images/s, last {LAST}",
        f"first {phase} / {DEFAULTS}",
        f"steps until {GOAL:.0%}",
    ):
        found.add_column(name, justify="left" if name == "variant" else "right")
    for variant in VARIANTS:
        of = starts.of(variant)
        if not of:
            continue
        found.add_row(
            variant,
            f"{np.median([images_after(one, images, SECONDS) for one in of]):.0f}",
            f"{np.median([mean_speed(one[-LAST:]) for one in of]):.2f}",
            f"{np.median([mean_speed(one[:phase]) for one in of]) / baseline:.3f}",
            ", ".join(f"{steps_until(one, goal):.0f}" for one in of),
        )
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="edsr")
    parser.add_argument("--broadcast", type=int, default=0, metavar="MIB")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.study = options.study or options.folder / "study"
    broadcast = ["--broadcast", str(options.broadcast)] if options.broadcast else []
    job = Job(options, options.folder, [options.model, *broadcast])
    winner = job.tune().winner or {}
    starts = Starts(options.folder, job)
    for number in track(range(options.rounds), "rounds", console=Console(stderr=True)):
        # With memory comes right after without: it needs what that start remembers.
        for variant in (*np.roll(VARIANTS[:3], number).tolist(), COLD, WARM):
            if variant in options.variants:
                starts.measure(variant, number, winner, options.steps)
    place = f"{options.nodes} nodes of {options.link}" if options.nodes else "two ranks in shared memory"
    and_broadcast = f" and {options.broadcast} MiB broadcast" if options.broadcast else ""
    title = f"{options.model}'s gradients{and_broadcast}, {place}, {options.steps} steps; tuned: {winner}"
    Console(width=150).print(table(title, starts, job.images_of_a_step, min(150, options.steps)))


if __name__ == "__main__":
    main()
