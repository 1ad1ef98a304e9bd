"""Finds uv, or puts a private copy of the locked version into the cache."""

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from lock_file import LockedPackage
from logged_run import say_then_run
from machine import first_line_of
from messages import SetUpError
from registry import registry_variables

# The first release that reads every field of uv.lock and pyproject.toml.
OLDEST_UV = (0, 8)
NO_PIP = (
    "neither uv nor pip nor venv: install pip (Debian, Ubuntu: apt install python3-pip python3-venv; "
    "Fedora, RHEL: dnf install python3-pip)"
)


def find_uv(cache: Path, locked: LockedPackage) -> Path:
    """Return uv from PATH when it is new enough, else the private copy, fetched on first use."""
    on_path = shutil.which("uv")
    if on_path and is_new_enough(on_path):
        return Path(on_path)
    folder = cache / f"uv-{locked.version}"
    if not folder.exists():
        fetch_uv(folder, locked)
    return folder / "bin" / "uv"


def is_new_enough(uv: str) -> bool:
    """Run uv and compare its version."""
    version = re.match(r"uv (\d+)\.(\d+)", first_line_of([uv, "--version"]) or "")
    return version is not None and (int(version[1]), int(version[2])) >= OLDEST_UV


def fetch_uv(folder: Path, locked: LockedPackage) -> None:
    """Install uv with pip into a temporary folder and rename it into place, so that no half of it is ever found."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **registry_variables()}
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        work = Path(temporary)
        python = sys.executable
        if importlib.util.find_spec("pip") is None:
            if importlib.util.find_spec("ensurepip") is None:
                raise SetUpError(NO_PIP)
            python = str(work / "venv" / "bin" / "python")
            make_venv = [sys.executable, "-m", "venv", str(work / "venv")]
            say_then_run("making room for pip", make_venv, folder.parent / "uv.log", environment, work)
        requirements = work / "requirements.txt"
        requirements.write_text(locked.requirement + "\n")
        pip = [python, "-m", "pip", "install", "--require-hashes", "--target", str(work / "uv")]
        command = [*pip, "--requirement", str(requirements)]
        say_then_run(f"fetching uv {locked.version}", command, folder.parent / "uv.log", environment, work)
        (work / "uv").rename(folder)
