"""The cache of built Horovod wheels, outside the clone: each is built once for a machine and
appears whole or not at all.

<cache>/horovod/<key>/horovod-*.whl, key.json     a finished build <cache>/horovod/logs/<key>.log
what the last build printed <cache>/horovod/.building-*                       a build under way; a
leftover when nobody holds the lock <cache>/horovod/.lock                             held by the
one set-up that builds
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from horovod_recipe import Recipe
from logged_run import say_then_run
from messages import SetUpError, say


def cache_folder() -> Path:
    """Where wheels and a private uv are kept: HVSCALE_CACHE, or hvscale in the user's cache
    folder.
    """
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvscale"
    cache = Path(os.environ.get("HVSCALE_CACHE") or users).expanduser().absolute()
    if " " in str(cache):
        # Horovod is built in there, and CMake splits what mpicxx prints at spaces.
        raise SetUpError(f"the cache's path must not hold a space ({cache}): name another folder with HVSCALE_CACHE")
    return cache


def find_wheel(cache: Path, key: str) -> Path | None:
    """The finished wheel for a key, or None."""
    return next((cache / "horovod" / key).glob("horovod-*.whl"), None)


def build_wheel(cache: Path, recipe: Recipe, environment: Path) -> Path:
    """Build the wheel with the Python and the tools of `environment`, unless another set-up did so
    meanwhile.

    Raises SetUpError, which names the log, when the build fails.
    """
    folder = cache / "horovod"
    folder.mkdir(parents=True, exist_ok=True)
    with sole_builder(folder):
        for leftover in folder.glob(".building-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        built_meanwhile = find_wheel(cache, recipe.key)
        if built_meanwhile:
            return built_meanwhile
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder, ignore_cleanup_errors=True) as temporary:
            finished = Path(temporary) / "finished"
            compile_into(finished, Path(temporary), recipe, environment, folder / "logs" / f"{recipe.key}.log")
            (finished / "key.json").write_text(json.dumps(recipe.ingredients(), indent=2) + "\n")
            # A folder without a wheel under the key would be an earlier version's: the rename needs
            # the place empty.
            shutil.rmtree(folder / recipe.key, ignore_errors=True)
            finished.rename(folder / recipe.key)
    return next((folder / recipe.key).glob("horovod-*.whl"))


@contextmanager
def sole_builder(folder: Path) -> Iterator[None]:
    """Hold the cache's lock: one build at a time, also among several clones; the system frees it
    when this process dies.
    """
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another set-up is building Horovod: waiting for it")
            fcntl.lockf(lock, fcntl.LOCK_EX)
        yield


def compile_into(finished: Path, work: Path, recipe: Recipe, environment: Path, log: Path) -> None:
    """Let pip fetch the source distribution with the locked hash and compile it."""
    requirements = work / "requirements.txt"
    requirements.write_text(recipe.horovod.requirement + "\n")
    scratch = work / "tmp"
    scratch.mkdir()
    pip_wheel = [
        str(environment / "bin" / "python"),
        "-m",
        "pip",
        "wheel",
        "--verbose",
        "--require-hashes",
        "--no-deps",
    ]
    # pip's own cache knows a built wheel by its name alone, whatever PyTorch it was built against.
    only_fresh = ["--no-cache-dir", "--no-binary", "horovod", "--no-build-isolation"]
    say(f"the build's log is {log}")
    say_then_run(
        f"building Horovod {recipe.horovod.version} for PyTorch {recipe.torch_version} and {recipe.mpi.name} (about 3 minutes)",
        [*pip_wheel, *only_fresh, "--requirement", str(requirements), "--wheel-dir", str(finished)],
        log,
        recipe.build_variables(environment, scratch),
        work,
    )
