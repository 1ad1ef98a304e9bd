"""The cache of Horovod wheels, outside the clone: each wheel is built once per machine.

<cache>/horovod/<key>/horovod-*.whl, key.json   a finished build
<cache>/horovod/logs/<key>.log                  the log of the last build
<cache>/horovod/.building-*                     a build in progress, or a leftover if unlocked
<cache>/horovod/.lock                           the lock of the set-up that builds
"""

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from horovod_recipe import Recipe
from logged_run import SetUpError, say, say_then_run


def cache_folder() -> Path:
    """Return HVSCALE_CACHE, or the folder hvscale in the user's cache folder."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvscale"
    cache = Path(os.environ.get("HVSCALE_CACHE") or users).expanduser().absolute()
    if " " in str(cache):
        # Horovod is built in the cache, and CMake splits mpicxx's output at spaces.
        raise SetUpError(f"the path of the cache contains a space ({cache}): set HVSCALE_CACHE to another folder")
    return cache


def create_cache(cache: Path) -> None:
    """Create the cache's folder. Raises SetUpError if this user cannot write there."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()  # also on a disk that is mounted read-only
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SetUpError(
            f"the cache {cache} cannot be written ({error.strerror}): set HVSCALE_CACHE to a folder of yours"
        ) from error


def find_wheel(cache: Path, key: str) -> Path | None:
    """Return the finished wheel for a key, or None."""
    return next((cache / "horovod" / key).glob("horovod-*.whl"), None)


def build_wheel(cache: Path, recipe: Recipe, environment: Path) -> Path:
    """Build the wheel with the Python and tools of `environment`, unless another set-up just did.

    Raises SetUpError with the log if the build fails.
    """
    folder = cache / "horovod"
    folder.mkdir(parents=True, exist_ok=True)
    with build_lock(folder):
        for leftover in folder.glob(".building-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        existing = find_wheel(cache, recipe.key)
        if existing:
            return existing
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder, ignore_cleanup_errors=True) as temporary:
            finished = Path(temporary) / "finished"
            compile_into(finished, Path(temporary), recipe, environment, folder / "logs" / f"{recipe.key}.log")
            (finished / "key.json").write_text(json.dumps(recipe.ingredients(), indent=2) + "\n")
            # The rename needs a free name: remove a folder without a wheel from an earlier version.
            shutil.rmtree(folder / recipe.key, ignore_errors=True)
            finished.rename(folder / recipe.key)
    return next((folder / recipe.key).glob("horovod-*.whl"))


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Lock the cache: all clones build one wheel at a time. The lock ends with this process."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another set-up is building Horovod: waiting for it")
            fcntl.lockf(lock, fcntl.LOCK_EX)
        yield


def compile_into(finished: Path, work: Path, recipe: Recipe, environment: Path, log: Path) -> None:
    """Let pip download the source distribution with the locked hash and compile it."""
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
    # pip's cache identifies a wheel by its name, whatever PyTorch it was built against.
    no_cache = ["--no-cache-dir", "--no-binary", "horovod", "--no-build-isolation"]
    say(f"build log: {log}")
    say_then_run(
        f"building Horovod {recipe.horovod.version} for PyTorch {recipe.torch_version} and {recipe.mpi.name} (about 3 minutes)",
        [*pip_wheel, *no_cache, "--requirement", str(requirements), "--wheel-dir", str(finished)],
        log,
        recipe.build_variables(environment, scratch),
        work,
    )
