"""Compare the choice of `hvscale tune --predict-np` with an exhaustive replay of a small grid.

The recorded job is replayed over an emulated network, one rank per node; nodes are network
namespaces with a shaped link. `tune` searches the model for as many ranks as are replayed. The grid
(fusion threshold x cycle time) is replayed in interleaved rounds. At the end the best of the grid
and the choice are replayed in turn. `python benchmarks/predicted_tune.py --nodes 8 --link 100mbit
[--rounds 3] [--steps 12] [--study DIR] RECORDED PROFILED...`; it needs root. A study in DIR is
resumed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from hvscale.core.run_folder import RunFolder
from hvscale.launch.placements._link_shaping import bits_per_second
from hvscale.prediction.model.job import read_job
from hvscale.prediction.settings import PredictedSettings, apply, recorded_settings
from hvscale.prediction.tuning.document import PredictedTune
from hvscale.prediction.tuning.search import Model, Settings, measured_costs, shared_cores
from hvscale.studies.comparison.settings import SettingsComparison

HVSCALE = Path(sys.executable).with_name("hvscale")
FUSION_MIB, CYCLE_MS = (1, 16, 128), (1, 5)
GOAL_PERCENT = 3


def place(options: argparse.Namespace) -> list[str]:
    np_ = str(options.nodes)
    return ["-np", np_, "--placement", "netns", "--nodes", np_, "--link", options.link]


def tune(options: argparse.Namespace, folder: Path) -> PredictedTune:
    arguments = [
        "--predict-np",
        options.nodes,
        "--pairs",
        max(2, options.rounds),
        "--steps",
        options.steps,
        "--run",
        folder,
    ]
    runs = [path.absolute() for path in (options.recorded, *options.profiled)]
    subprocess.run([str(HVSCALE), "tune", *place(options), *map(str, [*arguments, *runs])], check=True)
    return PredictedTune.model_validate_json((folder / "predicted-tune.json").read_text())


def compare(options: argparse.Namespace, files: list[Path], rounds: int, folder: Path) -> SettingsComparison:
    """Replay under each of the settings files, interleaved."""
    replay = ["--", "hvscale", "replay", str(options.recorded.absolute()), "--steps", str(options.steps)]
    command = [str(HVSCALE), "compare-settings", ",".join(map(str, files)), *place(options)]
    more = ["--repeat", str(rounds), "--run", str(folder)]
    subprocess.run([*command, *more, *replay], check=True, stdout=subprocess.DEVNULL)
    return SettingsComparison.model_validate_json((folder / "compare-settings.json").read_text())


def grid_files(folder: Path, mpi: str) -> dict[Path, dict[str, str]]:
    """A settings file for each point of the grid."""
    found = {}
    for fusion, cycle in product(FUSION_MIB, CYCLE_MS):
        settings = {"fusion_threshold": f"{fusion}M", "cycle_time": str(cycle)}
        lines = ['schema = "hvscale/settings/1"', f'mpi = "{mpi}"', "", "[set]"]
        path = folder / f"fusion-{fusion}-cycle-{cycle}.toml"
        path.write_text("\n".join([*lines, *(f"{knob} = {json.dumps(text)}" for knob, text in settings.items()), ""]))
        found[path] = settings
    return found


def predictions(options: argparse.Namespace, files: dict[Path, dict[str, str]]) -> dict[str, float]:
    """The predicted step's seconds of each point of the grid, by the name of its file."""
    runs = [RunFolder.open(path) for path in options.profiled]
    costs = measured_costs(runs, "openmpi", bits_per_second(options.link) / 8, "hvscale profile")
    job = read_job(RunFolder.open(options.recorded))
    recorded = PredictedSettings(recorded_settings(job.settings))
    samples = [one for measured in costs.samples.values() for one in measured]
    cores = shared_cores(samples, options.nodes, on_this_machine=True)  # nodes are network namespaces
    model = Model(job.replayed(options.nodes, options.steps), costs, options.nodes, cores)
    found = {}
    for path, settings in files.items():
        horovod = apply(recorded, [f"{knob}={text}" for knob, text in settings.items()]).horovod
        found[str(path)] = model.seconds(Settings(horovod))
    return found


def seconds_of(document: SettingsComparison, images: float) -> dict[str, float]:
    """The step's seconds by settings."""
    return {row.settings: images / row.throughput.mean for row in document.rows}


def images_of(folder: Path) -> float:
    """The images of one step of all ranks, as the replays report them."""
    steps = next(folder.glob("*-repeat-1/steps.jsonl")).read_text().splitlines()
    line: dict[str, Any] = json.loads(steps[0])
    return float(line["images"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recorded", type=Path, metavar="RECORDED", help="run with gradients and images")
    parser.add_argument("profiled", type=Path, nargs="+", metavar="PROFILED", help="profiled replays on that link")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="of each replay")
    parser.add_argument("--study", type=Path, help="folder of the studies, to resume them")
    options = parser.parse_args()
    if os.geteuid():
        raise SystemExit("network namespaces need root: run this benchmark as root")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.study or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        tuned = tune(options, folder / "tune")
        files = grid_files(folder, "openmpi")
        grid = compare(options, list(files), options.rounds, folder / "grid")
        images = images_of(folder / "grid")
        seconds = seconds_of(grid, images)
        predicted = predictions(options, files)
        best, foreseen = min(seconds, key=seconds.__getitem__), min(predicted, key=predicted.__getitem__)
        show = Console(width=120, highlight=False).print
        for name, path in zip(seconds, files, strict=True):
            settings = " ".join(f"{knob}={text}" for knob, text in files[path].items())
            marks = " (best)" * (name == best) + " (predicted best)" * (name == foreseen)
            show(f"grid: {settings}: replayed {seconds[name]:.4f} s, predicted {predicted[name]:.4f} s{marks}")
        longer = 100 * (seconds[foreseen] / seconds[best] - 1)
        show(
            f"of the grid: the predicted best takes {longer:+.1f} % against the replayed best; goal: at most +{GOAL_PERCENT} %"
        )
        show(f"choice: {tuned.settings}")
        if tuned.settings == files[Path(best)]:
            show("the choice is the best of the grid")
            return
        final = compare(options, [Path(best), folder / "tune/settings.toml"], options.rounds, folder / "final")
        gain = final.rows[1].gain
        if gain is None:
            raise SystemExit("the choice could not be replayed")
        longer = 100 * (1 / gain.mean - 1)
        bounds = (
            ""
            if gain.low is None or gain.high is None
            else f" ({100 * (1 / gain.high - 1):+.1f} to {100 * (1 / gain.low - 1):+.1f})"
        )
        show(
            f"the choice's step against the best of the grid: {longer:+.1f} %{bounds}; goal: at most +{GOAL_PERCENT} %"
        )


if __name__ == "__main__":
    main()
