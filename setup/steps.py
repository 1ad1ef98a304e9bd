"""The steps of a set-up: check the machine, find uv, fill .venv, build and install Horovod."""

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from cuda import choose_cuda
from environment import Environment
from horovod_recipe import Recipe, choose_recipe
from logged_run import InterruptedBySignal, SetUpError, say
from machine import check_compiler, find_tools
from mpi import CHOICES, MpiChoice, choose_mpi
from packages import read_locked_package
from uv_tool import get_uv, uv_available
from wheel_cache import build_wheel, cache_folder, find_wheel

CLONE = Path(__file__).resolve().parent.parent
EXTRA_GROUPS = ("dev", "docs")  # of pyproject.toml; each is an option
EXIT_WRONG_REQUEST = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Run the set-up and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="setup/install.py",
        description="Set up hvscale in .venv, or in .venv-mpich for --mpi mpich (docs/how-to/install.md).",
    )
    parser.add_argument("--dev", action="store_true", help="also install the packages for tests and linters")
    parser.add_argument("--docs", action="store_true", help="also install the packages that build the documentation")
    parser.add_argument(
        "--mpi", choices=CHOICES, default="openmpi", help="MPI to build Horovod against; default: openmpi"
    )
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, raise_interrupted)
    try:
        extra = [group for group in EXTRA_GROUPS if getattr(options, group)]
        set_up(CHOICES[options.mpi], extra)
    except SetUpError as error:
        say(str(error))
        return EXIT_WRONG_REQUEST
    except OSError as error:
        say(f"system error: {error}")
        return EXIT_WRONG_REQUEST
    except InterruptedBySignal:
        say("interrupted: incomplete files are removed; run the same command to start again")
        return EXIT_INTERRUPTED
    return 0


def raise_interrupted(_number: int, _frame: FrameType | None) -> None:
    """Turn a signal into an exception, so that each step cleans up; ignore further signals."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise InterruptedBySignal


def set_up(choice: MpiChoice, extra_groups: list[str]) -> None:
    """Update the environment to uv.lock and the chosen MPI; fast if it is up to date."""
    lock_file = CLONE / "uv.lock"
    cache = cache_folder()
    locked_uv = read_locked_package(lock_file, "uv")
    compilers = find_tools(uv_available=uv_available(cache, locked_uv))
    mpi = choose_mpi(choice, CLONE / choice.folder, lock_file)
    recipe = choose_recipe(lock_file, mpi, choose_cuda(), compilers)
    if not find_wheel(cache, recipe.key):
        check_compiler(compilers)
    environment = Environment(CLONE, choice.folder, get_uv(cache, locked_uv))
    with environment.locked():
        fill(environment, cache, recipe, extra_groups)


def fill(environment: Environment, cache: Path, recipe: Recipe, extra_groups: list[str]) -> None:
    """Install the locked packages, then Horovod's wheel."""
    installed = environment.installed_horovod() or ""
    is_current = f"/{recipe.key}/" in installed
    groups = ["horovod", "horovod-build", *([recipe.mpi.dependency_group] if recipe.mpi.dependency_group else [])]
    # Another wheel may mean another MPI: then remove the packages of the previous one.
    environment.sync([*groups, *extra_groups], keep_extra=is_current)
    wheel = find_wheel(cache, recipe.key) or build_wheel(cache, recipe, environment.folder)
    if not is_current or environment.installed_horovod() != installed:
        environment.install_horovod(wheel)
        say(f"ready: Horovod {recipe.horovod.version} for PyTorch {recipe.torch_version} and {recipe.mpi.name}")
