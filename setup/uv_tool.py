"""Find uv, or install a private copy of the locked version in the cache."""

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from logged_run import say_then_run
from machine import first_line_of
from packages import LockedPackage, registry_variables

# The first release that reads every field of uv.lock and pyproject.toml.
OLDEST_UV = (0, 8)


def uv_available(cache: Path, locked: LockedPackage) -> bool:
    """Return whether uv is installed or the set-up can download it."""
    return find_uv(cache, locked) is not None or has_module("pip") or has_module("ensurepip")


def get_uv(cache: Path, locked: LockedPackage) -> Path:
    """Return uv; download it first if the machine has none."""
    found = find_uv(cache, locked)
    if found:
        return found
    download_uv(private_folder(cache, locked), locked)
    return private_folder(cache, locked) / "bin" / "uv"


def find_uv(cache: Path, locked: LockedPackage) -> Path | None:
    """Return uv from PATH if it is new enough, else the private copy if there is one."""
    on_path = shutil.which("uv")
    if on_path and is_new_enough(on_path):
        return Path(on_path)
    private = private_folder(cache, locked) / "bin" / "uv"
    return private if private.exists() else None


def private_folder(cache: Path, locked: LockedPackage) -> Path:
    """Return the folder of the private copy."""
    return cache / f"uv-{locked.version}"


def has_module(name: str) -> bool:
    """Return whether this Python has a module, without importing it."""
    return importlib.util.find_spec(name) is not None


def is_new_enough(uv: str) -> bool:
    """Return whether this uv has at least version OLDEST_UV."""
    version = re.match(r"uv (\d+)\.(\d+)", first_line_of([uv, "--version"]) or "")
    return version is not None and (int(version[1]), int(version[2])) >= OLDEST_UV


def download_uv(folder: Path, locked: LockedPackage) -> None:
    """Install uv with pip in a temporary folder, then rename it: `folder` is never incomplete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **registry_variables()}
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        work = Path(temporary)
        python = sys.executable
        if not has_module("pip"):
            python = str(work / "venv" / "bin" / "python")
            make_venv = [sys.executable, "-m", "venv", str(work / "venv")]
            say_then_run("creating an environment for pip", make_venv, folder.parent / "uv.log", environment, work)
        requirements = work / "requirements.txt"
        requirements.write_text(locked.requirement + "\n")
        pip = [python, "-m", "pip", "install", "--require-hashes", "--target", str(work / "uv")]
        command = [*pip, "--requirement", str(requirements)]
        say_then_run(f"downloading uv {locked.version}", command, folder.parent / "uv.log", environment, work)
        (work / "uv").rename(folder)
