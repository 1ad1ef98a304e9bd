"""Runs, studies, checkpoints and tables that real commands make once and tries copy.

Each is made when a try first needs it.
"""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from fault_classes._try import ROOT
from tests.conftest import PROGRAMS

REPOSITORY = Path(__file__).parents[2]
PROGRAM_SOURCES = {
    "steady": REPOSITORY / "tests/profiling/programs/steady.c",
    "allreduces": REPOSITORY / "benchmarks/allreduces.c",
}
# Dropout draws random numbers in every step, so a resumed training must have its random state.
NET = """
from torch import nn
def net(num_classes=5):
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 32), nn.Dropout(0.5), nn.Linear(32, num_classes))
"""
# 64 MB of parameters and 64 MB of momentum, so that writing a checkpoint takes long enough.
LARGE_NET = """
from torch import nn
def net(num_classes=5):
    layers = [nn.Linear(12, 4000), nn.Dropout(0.1), nn.Linear(4000, 4000), nn.Linear(4000, num_classes)]
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), *layers)
"""
TRAIN = (
    *("--data", "synthetic", "--num-classes", 5, "--image-size", 8, "--batch-size", 2),
    *("--precision", "fp32", "--memory-format", "contiguous", "--threads", 1),
)
STEPS, LARGE_STEPS = 60, 8
TRAIN_SMALL = ("train", "small_net:net", *TRAIN, "--checkpoint-every", 4, "--steps", STEPS)
TRAIN_LARGE = ("train", "large_net:net", *TRAIN, "--checkpoint-every", 2, "--steps", LARGE_STEPS)
# Prints a throughput. A run of it takes less than a second.
SPEED = """
import os
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(1)
if MPI.COMM_WORLD.rank == 0:
    print(f"{100 * total} samples/s")
"""
# A job whose speed depends on the all-reduce algorithm, as `hvscale tune` sees it.
TUNED = """
import json, os, time
from pathlib import Path
import numpy as np
from mpi4py import MPI
from hvscale import profiling
world = MPI.COMM_WORLD
pause = 0.005 if os.environ.get("OMPI_MCA_coll_tuned_allreduce_algorithm", "") == "4" else 0.02
own, total = np.full(1 << 12, 1.0 + world.rank, np.float32), np.empty(1 << 12, np.float32)
steps = (Path(os.environ["HVSCALE_RUN"]) / "steps.jsonl").open("w", buffering=1) if world.rank == 0 else None
began = time.monotonic()
for step in range(100000):
    profiling.step()
    time.sleep(pause)
    world.Allreduce(own, total)
    now = time.monotonic()
    if steps is not None:
        steps.write(json.dumps({"images": 32, "seconds": now - began, "loss": float(total.mean()) / (step + 1)}) + "\\n")
    began = now
"""
TUNE = (
    *("tune", "-np", 2, "--knobs", "allreduce_algorithm", "--trial-seconds", 1, "--trials", 3),
    *("--run", "tuned", "--", "python", "tuned.py"),
)
SCALE = (
    *("scale", "--np", "1,2", "--repeat", 2, "--metric", "([0-9.]+) samples/s"),
    *("--run", "scaled", "--", "python", "speed.py"),
)
BENCH = ("bench", "allreduce", "-np", 2, "-b", "8", "-e", "1K", "--run", "benched")
COLLECTIVES = (
    *("tune-collectives", "-np", 2, "-b", "4K", "-e", "16K", "--ops", "allreduce"),
    *("--minutes", 0.1, "--run", "collectives"),
)
COMMANDS: dict[str, tuple[object, ...]] = {
    "profiled": ("profile", "-np", 2, "--run", "profiled", "--", "./steady", 0.3, 1),
    "trained": (*TRAIN_SMALL, "--run", "trained"),
    "large-trained": (*TRAIN_LARGE, "--run", "large-trained"),
    "job": (
        *("profile", "-np", 2, "--gradients", "--run", "job", "--", "hvscale", "train", "small_net:net", *TRAIN),
        *("--steps", 30),
    ),
    "scaled": SCALE,
    "benched": BENCH,
    "tuned": TUNE,
    "collectives": COLLECTIVES,
}
FILES = {"small_net.py": NET, "large_net.py": LARGE_NET, "speed.py": SPEED, "tuned.py": TUNED}
LIMIT_SECONDS = 600


class Originals:
    """The originals of a campaign in a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()

    def __call__(self, name: str) -> Path:
        """Return the original, which is made if it is missing.

        Raises CalledProcessError with the command's output if that fails.
        """
        path = self.folder / name
        with self.lock:
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                self._make(name)
        return path

    def _make(self, name: str) -> None:
        if name == "images":
            write_images(self.folder / name)
        elif name in FILES:
            (self.folder / name).write_text(FILES[name])
        elif name in PROGRAM_SOURCES:
            mpicc = [str(PROGRAMS / "mpicc"), "-O1", "-pthread", "-o", str(self.folder / name)]
            subprocess.run([*mpicc, str(PROGRAM_SOURCES[name])], check=True)
        else:
            self._run(name, COMMANDS[name])

    def _run(self, name: str, words: tuple[object, ...]) -> None:
        """Run the command in a folder of its own, so that an interrupted one leaves no original."""
        work = self.folder / f"making-{name}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        put_programs(work, self._file)
        environment = {**os.environ, **ROOT, "PYTHONPATH": str(work), "HVSCALE_DECODED": str(work / "decoded")}
        done = subprocess.run(
            [str(PROGRAMS / "hvscale"), *map(str, words)],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"`hvscale {' '.join(map(str, words))}` failed without a fault: {done.stderr[-2000:]}")
        for page in (work / name).rglob("*.html"):
            page.unlink()  # megabytes that no command reads
        (work / name).rename(self.folder / name)
        shutil.rmtree(work)

    def _file(self, name: str) -> Path:
        if not (self.folder / name).exists():
            self._make(name)
        return self.folder / name


def write_images(folder: Path) -> None:
    """Write ten images of five classes, to evaluate on."""
    for number in range(10):
        for part in ("train", "val"):
            kind = folder / part / "abcde"[number % 5]
            kind.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (20 * number, 255 - 10 * number, number)).save(kind / f"{number}.png")


def put_programs(folder: Path, original: Callable[[str], Path]) -> None:
    """Copy the programs and models that the commands name into a folder."""
    for name in [*FILES, *PROGRAM_SOURCES]:
        shutil.copy2(original(name), folder / name)
