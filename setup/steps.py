"""The steps of a set-up, in order: check the machine, find uv, fill .venv, build Horovod or take it
from the cache, install it.
"""

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from cuda import choose_cuda
from environment import Environment
from horovod_recipe import Recipe, choose_recipe
from lock_file import read_locked_package
from machine import check_that_horovod_can_be_compiled, find_tools
from messages import InterruptedBySignal, SetUpError, say
from mpi import CHOICES, Choice, choose_mpi
from uv_tool import get_uv, uv_can_be_had
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
    parser.add_argument("--dev", action="store_true", help="also install what the tests and linters need")
    parser.add_argument("--docs", action="store_true", help="also install what the documentation's site is built with")
    parser.add_argument("--mpi", choices=CHOICES, default="openmpi", help="the MPI that Horovod is built against")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_early)
    try:
        extra = [group for group in EXTRA_GROUPS if getattr(options, group)]
        set_up(CHOICES[options.mpi], extra)
    except SetUpError as error:
        say(str(error))
        return EXIT_WRONG_REQUEST
    except OSError as error:
        say(f"the system refused: {error}")
        return EXIT_WRONG_REQUEST
    except InterruptedBySignal:
        say("interrupted: nothing half-made is left, start it again at any time")
        return EXIT_INTERRUPTED
    return 0


def end_early(_number: int, _frame: FrameType | None) -> None:
    """Turn a signal into an exception, so that each step undoes what it has begun; a second signal
    changes nothing.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise InterruptedBySignal


def set_up(choice: Choice, extra_groups: list[str]) -> None:
    """Bring the choice's environment to what uv.lock and the chosen MPI ask for; next to nothing
    happens when it is there already.
    """
    lock_file = CLONE / "uv.lock"
    cache = cache_folder()
    locked_uv = read_locked_package(lock_file, "uv")
    compilers = find_tools(uv_can_be_had=uv_can_be_had(cache, locked_uv))
    mpi = choose_mpi(choice, CLONE / choice.folder, lock_file)
    recipe = choose_recipe(lock_file, mpi, choose_cuda(), compilers)
    if not find_wheel(cache, recipe.key):
        check_that_horovod_can_be_compiled(compilers)
    environment = Environment(CLONE, choice.folder, get_uv(cache, locked_uv))
    with environment.held_by_this_set_up():
        fill(environment, cache, recipe, extra_groups)


def fill(environment: Environment, cache: Path, recipe: Recipe, extra_groups: list[str]) -> None:
    """Install the locked packages, then Horovod's wheel."""
    installed = environment.installed_horovod() or ""
    is_current = f"/{recipe.key}/" in installed
    groups = ["horovod", "horovod-build", *([recipe.mpi.dependency_group] if recipe.mpi.dependency_group else [])]
    # With another Horovod goes another MPI: then whatever this choice does not ask for is taken
    # out.
    environment.sync([*groups, *extra_groups], keep_others=is_current)
    wheel = find_wheel(cache, recipe.key) or build_wheel(cache, recipe, environment.folder)
    if not is_current or environment.installed_horovod() != installed:
        environment.install_horovod(wheel)
        say(f"ready: Horovod {recipe.horovod.version} for PyTorch {recipe.torch_version} and {recipe.mpi.name}")
