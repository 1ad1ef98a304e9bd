"""Copies of this clone in which a test runs setup/install.py, and the PATH it runs with."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]
FILES_OF_A_SET_UP = ("pyproject.toml", "uv.lock", "CMakeLists.txt", "Makefile", "README.md", "LICENSE")
TOOLS = ("bash", "sh", "env", "make", "cc", "c++", "gcc", "as", "ld", "uv", "rm", "ls", "cat", "grep", "sed", "uname")


def copy_clone(folder: Path) -> Path:
    """Copy what a set-up reads, without .venv."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("setup", "hvscale", "native"):
        shutil.copytree(CLONE / name, folder / name, ignore=ignored)
    for name in FILES_OF_A_SET_UP:
        shutil.copy(CLONE / name, folder / name)
    return folder


def link_tools(folder: Path) -> Path:
    """Make a folder that can be the whole PATH: links to the tools, of which a test removes or
    replaces some.
    """
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


def replace(tool: Path, script: str) -> None:
    """Put a shell script in a tool's place."""
    tool.unlink()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def variables(cache: Path, **more: str) -> dict[str, str]:
    """The environment of a set-up that uses a cache of its own and none of the caller's choices."""
    own_choices = ("HVSCALE_", "VIRTUAL_ENV", "UV_PROJECT", "MAKEFLAGS", "CUDA_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(own_choices) and name not in ("CC", "CXX")
    }
    return kept | {"HVSCALE_CACHE": str(cache)} | more


def give_private_uv(cache: Path) -> None:
    """What the machine's own cache has of uv: where PATH has none, a set-up with an empty cache
    would fetch it first.
    """
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvscale"
    cache.mkdir()
    for folder in Path(os.environ.get("HVSCALE_CACHE") or users).glob("uv-*"):
        (cache / folder.name).symlink_to(folder)


def install(copy: Path, environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the set-up of a copy to its end."""
    command = [sys.executable, str(copy / "setup" / "install.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
