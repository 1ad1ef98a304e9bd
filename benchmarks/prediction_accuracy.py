"""Compare predictions of replayed jobs with their measured steps, on np that the model never saw.

Each model is recorded once on two ranks. Its communication is replayed under every setting of a
sample, on 2 and 4 ranks, to which `hvscale predict` is fitted, and on 8 and 16, which are held out.
Nodes are network namespaces with shaped links. A replay on 4 of them without a limit shows what
copies cost, and is fitted as well. All ranks share the machine's cores, and so does the
prediction. They get a core one after the other (`chrt --rr 1`). It needs root and a C compiler. Run
it again with the same folder to resume: complete runs are kept.

The machine must be idle otherwise. Runs beside which other work took processor time are named, in
the table and in the JSON document: delete their folders and measure them again.

The host may move a virtual machine's cores, and messages within a node may take twice as long while
they are far from each other (core_distance.py). Only the steps of a held-out run during which they
were near count. Each run is started up to `--attempts` times until it has enough of them. All
messages of a fitted run count.

`--across-settings` predicts each cell from the runs of the same job, network and library under the
default fusion threshold and cycle time, as `hvscale tune --predict-np` does. `--all-runs` predicts
each cell from the fitted runs of all cells with its network, library and algorithm: other jobs send
messages of other sizes. `--fit-starts 3 --starts 3` starts each run three times, in rounds, fits
all of those to fit, and also compares the means of the held-out ones.

Example: `python benchmarks/prediction_accuracy.py FOLDER [--sample all] [--cells PATTERN]
[--fit 2,4] [--fit-starts 3] [--held-out 8,16] [--analyze] [--across-settings] [--all-runs]
[--without-unlimited]`
"""

import argparse
import fnmatch
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from core_distance import CoreDistance, are_far
from numpy.typing import NDArray
from other_work import BUSY, OtherWork
from rich.console import Console
from rich.table import Table
from scipy import optimize

from hvscale.core.errors import RequestError
from hvscale.core.host import describe_host
from hvscale.core.run_folder import RunFolder, write_atomically
from hvscale.core.units import MIB
from hvscale.launch.supervision.processes import adopt_orphans
from hvscale.prediction.document import PredictedRow
from hvscale.prediction.model.horovod_loop import simulate
from hvscale.prediction.model.job import PredictedJob, read_job
from hvscale.prediction.model.measured_costs import MeasuredCosts, burst_left, fit_costs, without_others
from hvscale.prediction.model.samples import SETUP_STEPS, Samples, run_samples
from hvscale.prediction.predict import PredictionRequest, predict
from hvscale.prediction.settings import PredictedSettings, apply, recorded_settings
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.analyze.steps import read_step_log, step_edges

Floats = NDArray[np.float64]
TRAIN = {  # steps of 0.3 to 1 s on one core of a current server
    "edsr-baseline": ("--batch-size", "2"),
    "resnet50": ("--data", "synthetic", "--batch-size", "2"),
    "edsr": ("--patch-size", "12", "--batch-size", "1", "--precision", "fp32", "--memory-format", "contiguous"),
    "vgg16": ("--data", "synthetic", "--image-size", "64", "--batch-size", "1", "--learning-rate", "1e-4"),
}
RECORD = ["--gradients", "-np", "2", "--mpi", "gloo"]
SHARED_MEMORY = "shared memory"
UNLIMITED = "unlimited"  # nodes without a limited link
# What `hvscale launch` starts Horovod with.
DEFAULT_FUSION_MIB, DEFAULT_CYCLE_MS = 128, 5
FAR = 4  # held-out np over the largest fitted np, from which on the goal applies
LAUNCH_SECONDS = 300
# Cores may be far from each other for so much of a step that counts as near, and in so many steps
# of a run to fit. A held-out run needs so many near ones.
MOST_FAR = 0.1
FEWEST_NEAR = 6


class Cell(NamedTuple):
    """A model, a network and settings."""

    model: str
    link: str
    algorithm: str = "default"
    fusion_mib: int = DEFAULT_FUSION_MIB
    cycle_ms: int = DEFAULT_CYCLE_MS
    mpi: str = "openmpi"

    @property
    def name(self) -> str:
        link = self.link.replace(" ", "-")
        return f"{self.model}_{link}_{self.algorithm}_{self.fusion_mib}MiB_{self.cycle_ms}ms_{self.mpi}"

    @property
    def network(self) -> tuple[str, str, str]:
        """Link, algorithm and library, which decide how long a message of a size takes."""
        return self.link, self.algorithm, self.mpi

    @property
    def settings(self) -> tuple[str, ...]:
        """What differs from the recording, as `--set` takes it."""
        changes = {
            f"allreduce_algorithm={self.algorithm}": self.algorithm != "default",
            f"fusion_threshold={self.fusion_mib * MIB}": self.fusion_mib != DEFAULT_FUSION_MIB,
            f"cycle_time={self.cycle_ms}": self.cycle_ms != DEFAULT_CYCLE_MS,
        }
        return tuple(setting for setting, differs in changes.items() if differs)

    def launch_options(self, np_: int) -> list[str]:
        sets = [word for setting in self.settings for word in ("--set", setting)]
        options = ["-np", str(np_), "--mpi", self.mpi, *sets]
        if self.link == SHARED_MEMORY:
            return options
        link = [] if self.link == UNLIMITED else ["--link", self.link]
        return [*options, "--placement", "netns", "--nodes", str(np_), *link]


FUSION_AND_CYCLE = [(1, 5), (1, 1), (16, 5), (16, 1), (128, 1)]
# Each level of each factor occurs, with those first that say most about the model.
SAMPLE = [
    Cell("edsr-baseline", "1gbit"),
    Cell("edsr-baseline", "100mbit"),
    Cell("edsr-baseline", "100mbit", "ring"),
    Cell("edsr-baseline", SHARED_MEMORY),
    Cell("resnet50", "1gbit"),
    Cell("edsr-baseline", "1gbit", mpi="mpich"),
    Cell("edsr-baseline", "1gbit", mpi="gloo"),
    Cell("vgg16", SHARED_MEMORY),
    Cell("edsr", "1gbit", "ring", fusion_mib=16),
    Cell("edsr-baseline", "1gbit", "ring"),
    Cell("resnet50", "1gbit", "ring"),
    Cell("edsr-baseline", SHARED_MEMORY, "ring"),
    *(Cell("edsr-baseline", "100mbit", fusion_mib=fusion, cycle_ms=cycle) for fusion, cycle in FUSION_AND_CYCLE),
    Cell("edsr-baseline", "1gbit", cycle_ms=1),
    Cell("resnet50", "1gbit", fusion_mib=16),
    Cell("resnet50", SHARED_MEMORY, fusion_mib=16, cycle_ms=1),
    Cell("edsr-baseline", "100mbit", "ring", cycle_ms=1),
    Cell("edsr", SHARED_MEMORY, mpi="mpich"),
]
# Measured after the model was chosen on SAMPLE: other combinations of the same levels.
SECOND_SAMPLE = [
    Cell("edsr-baseline", "1gbit", fusion_mib=1, mpi="mpich"),
    Cell("edsr-baseline", "1gbit", fusion_mib=1, cycle_ms=1, mpi="gloo"),
    Cell("resnet50", SHARED_MEMORY),
    Cell("edsr-baseline", SHARED_MEMORY, mpi="gloo"),
    Cell("edsr-baseline", "100mbit", mpi="mpich"),
    Cell("resnet50", "1gbit", mpi="mpich"),
    Cell("edsr", SHARED_MEMORY, "ring", fusion_mib=16),
    Cell("edsr-baseline", "100mbit", mpi="gloo"),
    Cell("edsr-baseline", "1gbit", "ring", fusion_mib=1, cycle_ms=1),
    Cell("resnet50", SHARED_MEMORY, mpi="mpich"),
    Cell("edsr", "1gbit"),
    Cell("vgg16", SHARED_MEMORY, "ring"),
    Cell("edsr-baseline", "1gbit", cycle_ms=1, mpi="mpich"),
    Cell("resnet50", "1gbit", fusion_mib=16, mpi="gloo"),
    Cell("edsr-baseline", SHARED_MEMORY, mpi="mpich"),
    Cell("resnet50", SHARED_MEMORY, "ring", fusion_mib=1),
    Cell("edsr", SHARED_MEMORY, fusion_mib=16, cycle_ms=1),
    Cell("edsr-baseline", "100mbit", "ring", fusion_mib=1),
]
# Drawn at random from the 130 other combinations whose steps take seconds, after the model was
# changed with both samples known.
THIRD_SAMPLE = [
    Cell("resnet50", SHARED_MEMORY, fusion_mib=1, mpi="gloo"),
    Cell("resnet50", "1gbit", "ring", fusion_mib=16),
    Cell("edsr", SHARED_MEMORY, "ring", fusion_mib=16, cycle_ms=1),
    Cell("vgg16", SHARED_MEMORY, fusion_mib=16, mpi="mpich"),
    Cell("edsr-baseline", SHARED_MEMORY, cycle_ms=1),
    Cell("edsr-baseline", "100mbit", cycle_ms=1, mpi="mpich"),
    Cell("vgg16", SHARED_MEMORY, fusion_mib=16, cycle_ms=1, mpi="mpich"),
    Cell("edsr", "1gbit", fusion_mib=1),
    Cell("resnet50", SHARED_MEMORY, fusion_mib=1, cycle_ms=1, mpi="gloo"),
    Cell("resnet50", SHARED_MEMORY, "ring", fusion_mib=1, cycle_ms=1),
    Cell("edsr", SHARED_MEMORY, cycle_ms=1, mpi="mpich"),
    Cell("resnet50", "1gbit", fusion_mib=16, mpi="mpich"),
    Cell("edsr", SHARED_MEMORY, fusion_mib=16, cycle_ms=1, mpi="mpich"),
    Cell("resnet50", "1gbit", fusion_mib=1, cycle_ms=1, mpi="gloo"),
    Cell("edsr-baseline", "1gbit", "ring", cycle_ms=1),
    Cell("edsr", "1gbit", fusion_mib=16, cycle_ms=1, mpi="mpich"),
]
# More of Gloo in shared memory: the first four led to the correction for sockets, the others were
# measured after it.
FOURTH_SAMPLE = [
    Cell("edsr", SHARED_MEMORY, fusion_mib=16, mpi="gloo"),
    Cell("resnet50", SHARED_MEMORY, fusion_mib=16, mpi="gloo"),
    Cell("edsr-baseline", SHARED_MEMORY, fusion_mib=1, cycle_ms=1, mpi="gloo"),
    Cell("vgg16", SHARED_MEMORY, mpi="gloo"),
    Cell("edsr", SHARED_MEMORY, cycle_ms=1, mpi="gloo"),
    Cell("resnet50", SHARED_MEMORY, mpi="gloo"),
]
# Drawn at random from the 39 other combinations of the three larger models with MPI in shared
# memory. The model was changed once more with the fifth known; the sixth was measured after that.
FIFTH_SAMPLE = [
    Cell("vgg16", SHARED_MEMORY, "ring", fusion_mib=1, cycle_ms=1),
    Cell("vgg16", SHARED_MEMORY, mpi="mpich"),
    Cell("resnet50", SHARED_MEMORY, "ring", fusion_mib=16),
    Cell("edsr", SHARED_MEMORY, fusion_mib=16),
    Cell("edsr", SHARED_MEMORY, fusion_mib=1, cycle_ms=1, mpi="mpich"),
    Cell("vgg16", SHARED_MEMORY, cycle_ms=1),
]
SIXTH_SAMPLE = [
    Cell("resnet50", SHARED_MEMORY, "ring"),
    Cell("edsr", SHARED_MEMORY, "ring", fusion_mib=1),
    Cell("vgg16", SHARED_MEMORY, fusion_mib=1, cycle_ms=1, mpi="mpich"),
    Cell("resnet50", SHARED_MEMORY, fusion_mib=16, mpi="mpich"),
]
# Seven more, drawn after a change that the sixth had shown to be needed.
SEVENTH_SAMPLE = [
    Cell("vgg16", SHARED_MEMORY, cycle_ms=1, mpi="mpich"),
    Cell("edsr", SHARED_MEMORY, cycle_ms=1),
    Cell("resnet50", SHARED_MEMORY, "ring", cycle_ms=1),
    Cell("edsr", SHARED_MEMORY, fusion_mib=1),
    Cell("resnet50", SHARED_MEMORY, fusion_mib=1, cycle_ms=1, mpi="mpich"),
    Cell("resnet50", SHARED_MEMORY, fusion_mib=1),
    Cell("resnet50", SHARED_MEMORY, fusion_mib=1, cycle_ms=1),
]
# Three over Gloo, drawn after a correction of its agreements.
EIGHTH_SAMPLE = [
    Cell("edsr", SHARED_MEMORY, fusion_mib=16, cycle_ms=1, mpi="gloo"),
    Cell("vgg16", SHARED_MEMORY, fusion_mib=16, mpi="gloo"),
    Cell("edsr", SHARED_MEMORY, fusion_mib=1, cycle_ms=1, mpi="gloo"),
]
# Five over links and five in shared memory, drawn after a change that known settings had shown.
NINTH_SAMPLE = [
    Cell("edsr-baseline", "1gbit", fusion_mib=16, cycle_ms=1),
    Cell("edsr-baseline", "100mbit", "ring", fusion_mib=1, cycle_ms=1),
    Cell("edsr-baseline", "1gbit", "ring", fusion_mib=1),
    Cell("resnet50", "1gbit", "ring", fusion_mib=1, cycle_ms=1),
    Cell("edsr", "1gbit", fusion_mib=1, cycle_ms=1, mpi="gloo"),
    Cell("vgg16", SHARED_MEMORY, "ring", cycle_ms=1),
    Cell("edsr-baseline", SHARED_MEMORY, "ring", fusion_mib=16, cycle_ms=1),
    Cell("edsr-baseline", SHARED_MEMORY, "ring", fusion_mib=1),
    Cell("vgg16", SHARED_MEMORY, fusion_mib=1, mpi="gloo"),
    Cell("vgg16", SHARED_MEMORY, "ring", fusion_mib=16, cycle_ms=1),
]
SAMPLES = {
    "first": SAMPLE,
    "second": SECOND_SAMPLE,
    "third": THIRD_SAMPLE,
    "fourth": FOURTH_SAMPLE,
    "fifth": FIFTH_SAMPLE,
    "sixth": SIXTH_SAMPLE,
    "seventh": SEVENTH_SAMPLE,
    "eighth": EIGHTH_SAMPLE,
    "ninth": NINTH_SAMPLE,
}
ALL = [cell for cells in SAMPLES.values() for cell in cells]


@dataclass(frozen=True)
class HeldOut:
    """A held-out np of a cell: times in seconds, errors in percent, efficiency in points."""

    cell: str
    group: str
    """Cells that differ in nothing but their settings share it."""
    np: int
    start: int
    """From 1 to --starts."""
    extrapolation: float
    measured_seconds: float
    measured_seconds_low: float
    measured_seconds_high: float
    predicted_seconds: float
    predicted_seconds_low: float
    predicted_seconds_high: float
    error_percent: float
    efficiency_error_points: float
    messages: float
    predicted_messages: float
    messages_error_percent: float
    misplaced_bytes_percent: float
    """Of a step's bytes: in another range of sizes than measured."""
    wire_ratio: float | None
    """Seconds of the messages over what the model has for messages of the same sizes.

    None, of this and the next two: one of them is unknown or 0.
    """
    before_ratio: float | None
    """The same of the time before fused messages, in which Horovod copies."""
    agreements_ratio: float | None
    """The same of agreements that no message follows."""
    is_covered: bool
    no_overlap_percent: float
    full_overlap_percent: float
    fitted_curve_percent: float
    other_cores: float | None
    """That other work kept busy: the most beside this run or one that it is predicted from.

    None: unknown for all of them.
    """


PREDICTORS = {
    "hvscale predict": "error_percent",
    "no overlap": "no_overlap_percent",
    "full overlap": "full_overlap_percent",
    "curve fitted to throughput": "fitted_curve_percent",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", choices=[*SAMPLES, "all"], default="first", help="of settings; default: first")
    parser.add_argument("--cells", default="*", help="measure only cells whose name matches this pattern")
    parser.add_argument("--fit", type=numbers, default=[2, 4])
    parser.add_argument("--fit-starts", type=int, default=1, help="fit so many starts of each run; default: 1")
    parser.add_argument("--held-out", type=numbers, default=[8, 16])
    parser.add_argument("--starts", type=int, default=1, help="start each held-out run so many times; default: 1")
    parser.add_argument("--steps", type=int, default=20, help="recorded and replayed; default: 20")
    parser.add_argument("--under", default="chrt --rr 1", help="start each launch under this command")
    parser.add_argument("--attempts", type=int, default=3, help="at each run, until cores are near; default: 3")
    parser.add_argument("--minutes", type=float, default=np.inf, help="start no run after this many minutes")
    parser.add_argument("--analyze", action="store_true", help="measure nothing")
    parser.add_argument("--across-settings", action="store_true", help="fit runs under default settings only")
    parser.add_argument("--without-unlimited", action="store_true", help="neither start nor fit runs without --link")
    parser.add_argument("--all-runs", action="store_true", help="fit runs of all jobs on the same network")
    options = parser.parse_args()
    chosen = ALL if options.sample == "all" else SAMPLES[options.sample]
    cells = [cell for cell in chosen if fnmatch.fnmatch(cell.name, options.cells)]
    if not options.analyze:
        measure(cells, options)
    found = [row for cell in cells for row in cell_rows(cell, options)]
    disturbed, far = disturbed_runs(options.folder), far_runs(options)
    if not found:
        reason = f"; cores were far from each other in {len(far)} of its runs" if far else ""
        raise SystemExit(f"{options.folder} has no cell with runs to fit and a held-out run that counts{reason}")
    document = {
        "machine": describe_host().cpu,
        "disturbed": disturbed,
        "far_cores": far,
        "held_out": [asdict(row) for row in found],
    }
    text = json.dumps(document, indent=1) + "\n"
    suffix = "-across-settings" * options.across_settings + "-all-runs" * options.all_runs
    suffix += f"-fit-starts-{options.fit_starts}" * (options.fit_starts > 1)
    suffix += "-without-unlimited" * options.without_unlimited
    name = f"accuracy{suffix}.json"
    write_atomically(options.folder / name, lambda file: file.write(text.encode()))
    print_tables(found)
    if disturbed:
        print(f"Other work kept more than {BUSY} cores busy beside these runs. Delete them and measure them again:")
        print(*(f"  {run}: {cores:.2f} cores" for run, cores in disturbed.items()), sep="\n")
    if far:
        print("The machine's cores were far from each other in these runs. Delete them and measure them again:")
        print(*(f"  {run}: {100 * share:.0f} % of the steps" for run, share in far.items()), sep="\n")


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def measure(cells: Iterable[Cell], options: argparse.Namespace) -> None:
    """Record each model and replay each cell, unless the folder has it; failures do not stop it."""
    end = time.monotonic() + 60 * options.minutes
    if (busy := OtherWork.now()) > BUSY:
        print(f"warning: other work keeps {busy:.1f} cores busy, so figures will be wrong: stop it", file=sys.stderr)
    for cell in cells:
        recording = options.folder / "recordings" / cell.model
        train = ["hvscale", "train", cell.model, "--threads", "1", "--steps", str(options.steps), *TRAIN[cell.model]]
        if time.monotonic() > end or not profile(options, recording, RECORD, train):
            continue
        replay = ["hvscale", "replay", str(recording.resolve())]
        starts = [(cell, *one) for one in in_rounds(options)]
        for one, np_, start in [*unlimited_starts(cell, options), *starts]:
            folder = run_path(options.folder, one, np_, start)
            if time.monotonic() > end or not profile_near(options, folder, one.launch_options(np_), replay, end):
                break  # neither more ranks nor another start would succeed


def unlimited_starts(cell: Cell, options: argparse.Namespace) -> list[tuple[Cell, int, int]]:
    """The runs without a limited link that are fitted beside a cell's: the cell, np and start."""
    if cell.link == SHARED_MEMORY or options.without_unlimited:
        return []
    return [(cell._replace(link=UNLIMITED), max(options.fit), 1)]


def in_rounds(options: argparse.Namespace) -> list[tuple[int, int]]:
    """The np and start of each run: one start of each np after the other.

    The speed of a virtual machine's memory may change from minute to minute (memory_speed.py). In
    rounds, the fitted and the held-out runs meet the same changes.
    """
    starts = [*fitted_starts(options), *product(options.held_out, range(1, options.starts + 1))]
    return sorted(starts, key=lambda one: one[1])


def fitted_starts(options: argparse.Namespace) -> list[tuple[int, int]]:
    """The np and start of each run to fit."""
    return list(product(options.fit, range(1, options.fit_starts + 1)))


def run_path(folder: Path, cell: Cell, np_: int, start: int = 1) -> Path:
    return Path(folder / "runs" / cell.name / (str(np_) if start == 1 else f"{np_}.{start}"))


def is_complete(run: Path) -> bool:
    try:
        return RunFolder.open(run).read().exit_status == 0
    except (RequestError, OSError):
        return False


def profile_near(options: argparse.Namespace, run: Path, launch: list[str], command: list[str], end: float) -> bool:
    """Profile a run again until the cores stayed near each other; the last attempt is kept.

    `end`: of time.monotonic(), after which no attempt starts.
    """
    for attempt in range(options.attempts):
        if not profile(options, run, launch, command):
            return False
        if is_near(run, options):
            break
        if attempt + 1 < options.attempts and time.monotonic() < end:
            shutil.rmtree(run)
    return True


def profile(options: argparse.Namespace, run: Path, launch: list[str], command: list[str]) -> bool:
    """Start a profiled run unless it is complete; returns whether it is."""
    if is_complete(run):
        return True
    shutil.rmtree(run, ignore_errors=True)
    run.parent.mkdir(parents=True, exist_ok=True)
    environment = ".venv-mpich" if "mpich" in launch else Path(sys.executable).parent.parent.name
    hvscale = Path(sys.executable).parent.parent.parent / environment / "bin" / "hvscale"
    arguments = [str(hvscale), "profile", *launch, "--run", str(run), "--", *command]
    print(shlex.join(arguments), file=sys.stderr, flush=True)
    with (run.parent / f"{run.name}.txt").open("w") as output, adopt_orphans():
        whole = [*shlex.split(options.under), "timeout", str(LAUNCH_SECONDS), *arguments]
        path = f"{hvscale.parent}{os.pathsep}{os.environ['PATH']}"
        work, distance = OtherWork(), CoreDistance()
        done = subprocess.run(
            whole, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "PATH": path}, check=False
        )
        np.savetxt(round_trips_file(run), distance.stop(), "%.3f")
        other_work_file(run).write_text(f"{work.cores:.3f}\n")
    if done.returncode:
        print(f"exit status {done.returncode}, see {run.parent / run.name}.txt", file=sys.stderr, flush=True)
    return done.returncode == 0


def other_work_file(run: Path) -> Path:
    """Holds the cores that other work kept busy beside the run."""
    return run.parent / f"{run.name}.other-cores"


def other_cores(run: Path) -> float | None:
    """The cores that other work kept busy beside the run; None if unknown."""
    try:
        return float(other_work_file(run).read_text())
    except (OSError, ValueError):
        return None


def round_trips_file(run: Path) -> Path:
    """Holds the round trips of a cache line between the cores during the run: CoreDistance.stop."""
    return run.parent / f"{run.name}.round-trips"


def far_samples(run: Path) -> tuple[Floats, NDArray[np.bool_]]:
    """Seconds since 1970, and whether the cores were far from each other; none if unknown."""
    written = {file: file.stat().st_mtime_ns for file in run.parent.parent.glob("*/*.round-trips")}
    file, none = round_trips_file(run), np.empty((0, 3))
    samples = read_round_trips(file, written[file]) if file in written else none
    every = np.concatenate([none, *(read_round_trips(*one) for one in written.items())])
    return samples[:, 0], are_far(samples, every)


@cache
def read_round_trips(file: Path, _written: int) -> Floats:
    return np.loadtxt(file, ndmin=2).reshape(-1, 3) if file.stat().st_size else np.empty((0, 3))


def counted_steps(run: RunFolder) -> tuple[Floats, NDArray[np.bool_]]:
    """The seconds of all but the first steps, and whether the cores stayed near each other.

    They count as near if nothing is known.
    """
    seconds, is_far = far_samples(run.path)
    edges = step_edges(read_recording(run), read_step_log(run)) if len(seconds) else None
    if edges is None:
        steps = step_seconds(run)
        return steps, np.ones(len(steps), np.bool_)
    step = np.searchsorted(edges / 1e9, seconds) - 1
    inside = (step >= 0) & (step < len(edges) - 1)
    count, far = (np.bincount(step[inside], weights, len(edges) - 1) for weights in (None, is_far[inside]))
    return (np.diff(edges) / 1e9)[SETUP_STEPS:], (far <= MOST_FAR * count)[SETUP_STEPS:]


def is_near(run: Path, options: argparse.Namespace) -> bool:
    """Whether the cores stayed near each other in enough steps of a complete run."""
    _, near = counted_steps(RunFolder.open(run))
    is_fitted = int(run.name.split(".")[0]) in options.fit
    return bool(near.sum() >= ((1 - MOST_FAR) * len(near) if is_fitted else min(FEWEST_NEAR, len(near))))


def far_runs(options: argparse.Namespace) -> dict[str, float]:
    """The complete runs in which they did not, with the share of steps in which they were far."""
    runs = [run for run in sorted(options.folder.glob("runs/*/*/")) if is_complete(run)]
    return {
        str(run): 1 - float(counted_steps(RunFolder.open(run))[1].mean()) for run in runs if not is_near(run, options)
    }


def disturbed_runs(folder: Path) -> dict[str, float]:
    """The complete runs beside which other work kept cores busy, with their number."""
    runs = sorted([*folder.glob("recordings/*/"), *folder.glob("runs/*/*/")])
    found = {str(run): cores for run in runs if (cores := other_cores(run)) is not None and is_complete(run)}
    return {run: cores for run, cores in found.items() if cores > BUSY}


def cell_rows(cell: Cell, options: argparse.Namespace) -> list[HeldOut]:
    """A row for each held-out np with a complete run; none without the runs to fit."""
    fitted_cell = cell
    if options.across_settings:
        fitted_cell = cell._replace(fusion_mib=DEFAULT_FUSION_MIB, cycle_ms=DEFAULT_CYCLE_MS)
        if fitted_cell == cell:
            return []
    paths = [run_path(options.folder, fitted_cell, *one) for one in fitted_starts(options)]
    starts = {
        (np_, start): run_path(options.folder, cell, np_, start)
        for np_, start in product(options.held_out, range(1, options.starts + 1))
    }
    runs = {key: RunFolder.open(path) for key, path in starts.items() if is_complete(path) and is_near(path, options)}
    held_out = sorted({np_ for np_, _ in runs})
    recording = options.folder / "recordings" / cell.model
    if not held_out or not all(map(is_complete, [*paths, recording])):
        return []
    fitted = [RunFolder.open(path) for path in paths]
    without_link = [run_path(options.folder, *one) for one in unlimited_starts(fitted_cell, options)]
    unlimited = [RunFolder.open(path) for path in without_link if is_complete(path)]
    others = other_jobs_runs(fitted_cell, options) if options.all_runs else []
    cores = describe_host().cores
    try:
        request = PredictionRequest(np=held_out, set=cell.settings, cores=cores)
        document = predict([RunFolder.open(recording), *fitted, *unlimited, *others], request)
    except RequestError as error:
        print(f"{cell.name}: {error}", file=sys.stderr)
        return []
    job = read_job(RunFolder.open(recording))
    samples, without_limit = ([all_samples(run) for run in those] for those in ((*fitted, *others), unlimited))
    costs = fit_costs(samples, cores, unlimited=without_limit)
    naive = naive_predictors(job, costs, cell, fitted)
    horovod = apply(PredictedSettings(recorded_settings(job.settings)), cell.settings).horovod
    sizes = {np_: simulate(job, horovod, costs, np_).traffic.bytes for np_ in held_out}
    by_np = {row.np: row for row in document.rows}
    compute, far = document.compute_seconds, max(options.fit)
    beside = [other_cores(run) for run in (recording, *paths, *(run.path for run in unlimited))]
    return [
        held_out_row(cell, run, start, by_np[np_], sizes[np_], compute, naive, np_ / far, beside, costs)
        for (np_, start), run in runs.items()
    ]


def other_jobs_runs(cell: Cell, options: argparse.Namespace) -> list[RunFolder]:
    """The complete runs to fit of the other cells with the same network, library and algorithm."""
    alike = [one for one in ALL if one != cell and one.network == cell.network]
    paths = [run_path(options.folder, one, *start) for one in alike for start in fitted_starts(options)]
    return [RunFolder.open(path) for path in paths if is_complete(path)]


def held_out_row(
    cell: Cell,
    run: RunFolder,
    start: int,
    row: PredictedRow,
    sizes: Floats,
    compute: float,
    naive: list[Callable[[int], float]],
    far: float,
    beside: Sequence[float | None],
    costs: MeasuredCosts,
) -> HeldOut:
    """`beside`: the cores of other work beside the runs that the prediction starts from."""
    every, near = counted_steps(run)
    seconds, samples, steps = every[near], all_samples(run), len(step_seconds(run))
    mean = float(seconds.mean())
    drawn = np.random.default_rng(0).integers(len(seconds), size=(4000, len(seconds)))
    low, high = (float(one) for one in np.quantile(seconds[drawn].mean(axis=1), [0.05, 0.95]))
    messages, predicted = len(samples.bytes) / steps, sum(size.calls for size in row.messages)
    low_step, high_step = row.step_seconds_low or 0.0, row.step_seconds_high or float("inf")
    errors = [100 * (one(row.np) / mean - 1) for one in naive]
    parts = part_ratios(samples, costs)
    return HeldOut(
        cell=cell.name,
        group=f"{cell.model} {cell.link} {cell.mpi} {row.np}",
        np=row.np,
        start=start,
        extrapolation=far,
        measured_seconds=mean,
        measured_seconds_low=low,
        measured_seconds_high=high,
        predicted_seconds=row.step_seconds,
        predicted_seconds_low=low_step,
        predicted_seconds_high=high_step,
        error_percent=100 * (row.step_seconds / mean - 1),
        efficiency_error_points=100 * (row.scaling_efficiency - compute / mean),
        messages=messages,
        predicted_messages=predicted,
        messages_error_percent=100 * (predicted / messages - 1),
        misplaced_bytes_percent=misplaced_bytes(samples.bytes, sizes),
        wire_ratio=parts["wire"],
        before_ratio=parts["before"],
        agreements_ratio=parts["agreements"],
        is_covered=low_step <= mean <= high_step,
        no_overlap_percent=errors[0],
        full_overlap_percent=errors[1],
        fitted_curve_percent=errors[2],
        other_cores=max((one for one in (*beside, other_cores(run.path)) if one is not None), default=None),
    )


def part_ratios(run: Samples, costs: MeasuredCosts) -> dict[str, float | None]:
    """The seconds of each part of a run's steps, over those of the model for the same messages."""
    copied = np.ones(len(run.bytes), np.bool_) if run.fused is None else run.fused
    before = None if run.before_seconds is None else run.before_seconds[copied]
    agreements = np.full(len(run.agreements), costs.agreement_seconds(run.np))
    return {
        "wire": ratio(
            without_others(run, costs.handling).seconds,
            costs.wire_seconds(run.bytes, run.np, burst_left(run, costs.burst)),
        ),
        "before": None if before is None else ratio(before, costs.before_seconds(run.bytes[copied], run.np)),
        "agreements": ratio(run.agreements, agreements),
    }


def ratio(measured: Floats, modelled: Floats) -> float | None:
    """Of the sums; None if one is 0."""
    sums = float(measured.sum()), float(modelled.sum())
    return sums[0] / sums[1] if min(sums) > 0 else None


def step_seconds(run: RunFolder) -> Floats:
    """The steps of a run but for the first ones, as the prediction counts them."""
    log = read_step_log(run)
    if log is None or len(log.seconds) <= SETUP_STEPS:
        raise RequestError(f"{run.path} has no steps")
    return log.seconds[SETUP_STEPS:]


def all_samples(run: RunFolder) -> Samples:
    """The fused messages of a run."""
    found = run_samples(run)
    if found is None:
        raise RequestError(f"{run.path} has no messages")
    return found


def misplaced_bytes(measured: Floats, predicted: Floats) -> float:
    """Percent of the bytes that predicted messages carry in another range of sizes than measured.

    A range ends at twice the size where it begins.
    """
    ranges = [np.floor(np.log2(np.maximum(sizes, 1))).astype(int) for sizes in (measured, predicted)]
    last = int(max(found.max() for found in ranges)) + 1
    shares = [
        np.bincount(found, sizes, last) / sizes.sum()
        for found, sizes in zip(ranges, (measured, predicted), strict=True)
    ]
    return float(50 * np.abs(shares[0] - shares[1]).sum())


def naive_predictors(
    job: PredictedJob, costs: MeasuredCosts, cell: Cell, fitted: Sequence[RunFolder]
) -> list[Callable[[int], float]]:
    """Seconds of a step by np: without overlap, with full overlap, and by Amdahl's law.

    The first two send all gradients at the end, or hide all of them, in messages as large as the
    fusion threshold, at the costs that the model measured. The third is fitted to throughput alone.
    """
    whole, rest = divmod(float(job.bytes.sum()), float(cell.fusion_mib * MIB))
    sizes = np.array([cell.fusion_mib * MIB] * int(whole) + [rest], np.float64)

    def messages(np_: int) -> float:
        return float(costs.message_seconds(sizes, np_).sum())

    nps = np.array([run.read().np for run in fitted], np.float64)
    throughput = nps / [step_seconds(run).mean() for run in fitted]

    def amdahl(np_: Floats | float, rate: float, serial: float) -> Floats | float:
        return rate * np_ / (1 + serial * (np_ - 1))

    found = optimize.least_squares(
        lambda fit: np.log(amdahl(nps, *fit) / throughput), (throughput[0] / nps[0], 0.1), bounds=(1e-9, np.inf)
    )
    rate, serial = found.x
    return [
        lambda np_: job.compute_seconds + messages(np_),
        lambda np_: max(job.compute_seconds, messages(np_)),
        lambda np_: np_ / float(amdahl(float(np_), rate, serial)),
    ]


def kendall(rows: Sequence[HeldOut]) -> tuple[float, int]:
    """Kendall's tau over all pairs of settings of one job, and the number of pairs.

    Of the same starts: those of one cell are no pair.
    """
    signs = [
        np.sign(one.measured_seconds - other.measured_seconds)
        * np.sign(one.predicted_seconds - other.predicted_seconds)
        for one, other in combinations(rows, 2)
        if (one.group, one.start) == (other.group, other.start)
    ]
    return (float(np.mean(signs)) if signs else float("nan")), len(signs)


def print_tables(rows: Sequence[HeldOut]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 170)
    table = Table(title="held-out runs: step time, 90 % intervals")
    for name in (
        "cell",
        "np",
        "start",
        "measured, s",
        "predicted, s",
        "error, %",
        "efficiency, points",
        "messages",
        "predicted",
        "other work, cores",
    ):
        table.add_column(name, justify="left" if name == "cell" else "right")
    for row in rows:
        table.add_row(
            row.cell.replace("_", " "),
            str(row.np),
            str(row.start),
            f"{row.measured_seconds:.3f} ({row.measured_seconds_low:.3f} to {row.measured_seconds_high:.3f})",
            f"{row.predicted_seconds:.3f} ({row.predicted_seconds_low:.3f} to {row.predicted_seconds_high:.3f})",
            f"{row.error_percent:+.1f}",
            f"{row.efficiency_error_points:+.1f}",
            f"{row.messages:.1f}",
            f"{row.predicted_messages:.1f}",
            "unknown" if row.other_cores is None else f"{row.other_cores:.2f}",
        )
    console.print(table)
    for title, chosen in (
        ("all held-out runs", rows),
        (f"{FAR} or more times the fitted np", [row for row in rows if row.extrapolation >= FAR]),
    ):
        if chosen:
            console.print(summary(f"{title}: {len(chosen)} runs", chosen))
            console.print(figures(chosen), highlight=False)
            console.print(parts_table(chosen))
            repeated, between = means_of_starts(chosen)
            if repeated:
                console.print(summary(f"{title}: {len(repeated)} means over several starts", repeated))
                console.print(
                    f"a start differs from the mean of its job's by {between.mean():.1f} % (mean), "
                    f"{between.max():.1f} % (worst)",
                    highlight=False,
                )


def parts_table(rows: Sequence[HeldOut]) -> Table:
    """Where errors come from: geometric means of the ratios, by network and np."""
    table = Table(title="measured over modelled seconds, for the same messages (geometric means)")
    for name in ("network", "np", "runs", "messages", "before messages", "agreements"):
        table.add_column(name, justify="left" if name == "network" else "right")
    networks = {cell.name: cell.link for cell in ALL}
    for network, np_ in sorted({(networks[row.cell], row.np) for row in rows}):
        chosen = [row for row in rows if (networks[row.cell], row.np) == (network, np_)]
        columns = zip(*((row.wire_ratio, row.before_ratio, row.agreements_ratio) for row in chosen), strict=True)
        known = [[one for one in column if one is not None] for column in columns]
        means = [f"{np.exp(np.log(ratios).mean()):.2f}" if ratios else "unknown" for ratios in known]
        table.add_row(network, str(np_), str(len(chosen)), *means)
    return table


def means_of_starts(rows: Sequence[HeldOut]) -> tuple[list[HeldOut], Floats]:
    """The rows of jobs that were started several times, with the mean of the starts' steps.

    Also the distance of each start from that mean, in percent.
    """
    means, distances = [], [np.empty(0)]
    for first in rows:
        starts = [row for row in rows if (row.cell, row.np) == (first.cell, first.np)]
        if first is not starts[0] or len(starts) == 1:
            continue
        seconds = np.array([row.measured_seconds for row in starts])
        mean = float(seconds.mean())
        errors = {
            field: 100 * ((1 + getattr(first, field) / 100) * first.measured_seconds / mean - 1)
            for field in PREDICTORS.values()
        }
        means.append(replace(first, measured_seconds=mean, **errors))
        distances.append(100 * np.abs(seconds / mean - 1))
    return means, np.concatenate(distances)


def summary(title: str, rows: Sequence[HeldOut]) -> Table:
    table = Table(title=title)
    for name in ("error of the step's time, %", "mean", "median", "worst", "signed mean"):
        table.add_column(name, justify="left" if name.startswith("error") else "right")
    for name, field in PREDICTORS.items():
        errors = np.array([getattr(row, field) for row in rows])
        sizes = np.abs(errors)
        figures = (sizes.mean(), float(np.median(sizes)), sizes.max())
        table.add_row(name, *(f"{one:.1f}" for one in figures), f"{errors.mean():+.1f}")
    return table


def figures(rows: Sequence[HeldOut]) -> str:
    """What the table of errors leaves out, in lines."""
    points = np.abs([row.efficiency_error_points for row in rows])
    messages = np.array([row.messages_error_percent for row in rows])
    misplaced = np.array([row.misplaced_bytes_percent for row in rows])
    noise = np.array([(row.measured_seconds_high / row.measured_seconds_low - 1) * 50 for row in rows])
    tau, pairs = kendall(rows)
    return "\n".join(
        [
            f"efficiency: mean error {points.mean():.1f} points, worst {points.max():.1f}",
            f"fused messages: number, mean error {np.abs(messages).mean():.1f} %, worst {np.abs(messages).max():.1f} %, "
            f"signed mean {messages.mean():+.1f} %; bytes in another range of sizes, mean {misplaced.mean():.1f} %",
            f"90 % interval: covers {100 * np.mean([row.is_covered for row in rows]):.0f} %",
            f"order of settings: Kendall's tau {tau:.2f} over {pairs} pairs",
            f"the measured means themselves: +-{noise.mean():.1f} % (90 % interval, over steps of one start)",
        ]
    )


if __name__ == "__main__":
    main()
