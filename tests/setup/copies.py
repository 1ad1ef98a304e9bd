"""Copies of this clone in which tests run setup/install.py, with a chosen PATH."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import HANG_SECONDS

CLONE = Path(__file__).resolve().parents[2]
SETUP_FILES = ("pyproject.toml", "uv.lock", "CMakeLists.txt", "Makefile", "README.md", "LICENSE")
TOOLS = ("bash", "sh", "env", "make", "cc", "c++", "gcc", "as", "ld", "uv", "rm", "ls", "cat", "grep", "sed", "uname")
# The key of the Horovod that an installation with this Python needs.
HOROVOD_KEY = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from horovod_recipe import choose_recipe
from machine import find_tools
from mpi import CHOICES, choose_mpi
from site_python import ask_site_python
site, lock = ask_site_python(), Path(sys.argv[1]).parent / "uv.lock"
mpi = choose_mpi(CHOICES["openmpi"], Path("/any"), lock)
print(choose_recipe(lock, mpi, find_tools(uv_available=True), site).key)
"""


def copy_clone(folder: Path) -> Path:
    """Copy the files that a set-up reads, without .venv."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("setup", "hvscale", "native"):
        shutil.copytree(CLONE / name, folder / name, ignore=ignored)
    for name in SETUP_FILES:
        shutil.copy(CLONE / name, folder / name)
    return folder


def link_tools(folder: Path) -> Path:
    """Make a folder of links to the tools, for use as PATH; tests remove or replace some."""
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


def replace_tool(tool: Path, script: str) -> None:
    """Replace a tool by a shell script."""
    tool.unlink()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def setup_environment(cache: Path, **more: str) -> dict[str, str]:
    """Return the variables of a set-up with its own cache and none of the caller's settings."""
    caller_settings = ("HVSCALE_", "VIRTUAL_ENV", "UV_PROJECT", "MAKEFLAGS", "CUDA_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(caller_settings) and name not in ("CC", "CXX")
    }
    return kept | {"HVSCALE_CACHE": str(cache)} | more


def link_private_uv(cache: Path) -> None:
    """Link uv from the machine's cache, so that a set-up does not download it."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvscale"
    cache.mkdir()
    for folder in Path(os.environ.get("HVSCALE_CACHE") or users).glob("uv-*"):
        (cache / folder.name).symlink_to(folder)


def run_setup(copy: Path, environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the set-up of a copy and wait for it."""
    command = [sys.executable, str(copy / "setup" / "install.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)


def horovod_key(python: str | Path, environment: dict[str, str]) -> str:
    """Return the key of the Horovod for an interpreter's PyTorch and the Open MPI wheel."""
    words = [str(python), "-c", HOROVOD_KEY, str(CLONE / "setup")]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip()
