"""Makes a job record its communication: environment variables for its ranks, and truncation of the
profiles afterwards.
"""

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import hvscale.profiling.record.rank_side
from hvscale.core.built_library import built_library, preloaded
from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read import nccl_file, profile_file

LIBRARY = "libhvprof.so"
# Also wraps MPI 4's functions with large counts. Preloaded only if the MPI library has them,
# because a program that finds these functions calls them.
LARGE_COUNTS_LIBRARY = "libhvprof-large-counts.so"
NCCL_PLUGIN = "libhvprof-nccl.so"
STEP_LOG = "libhvgradients.so"


def library_path(large_counts: bool = False) -> Path:
    """The path of hvprof for an MPI library with or without large counts.

    Raises RequestError if hvprof was not built.
    """
    return built_library(LARGE_COUNTS_LIBRARY if large_counts else LIBRARY)


def preload_environment(
    run: RunFolder, environment: Mapping[str, str] = os.environ, *, large_counts: bool = False
) -> dict[str, str]:
    """The environment variables that make each rank record its MPI calls into the run.

    `environment`: the rank's environment so far. `large_counts`: whether its MPI library has
    MPI 4's functions with large counts.

    Raises RequestError if hvprof was not built, or if LD_PRELOAD cannot hold its path.
    """
    return {**preloaded(library_path(large_counts), environment), "HVPROF_DIRECTORY": str(run.hvprof.absolute())}


def timeline_environment(run: RunFolder) -> dict[str, str]:
    """The environment variables that make Horovod write its timeline into the run (on rank 0)."""
    return {"HOROVOD_TIMELINE": str(run.timeline.absolute())}


def nccl_plugin_path() -> Path:
    """The path of the NCCL plug-in. Raises RequestError if it was not built."""
    return built_library(NCCL_PLUGIN)


def nccl_environment(run: RunFolder, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables that make NCCL 2.23 and later record its calls into the run.

    Empty if `environment`, the rank's environment so far, already names a plug-in: NCCL loads only
    one. A job without NCCL never loads the plug-in.

    Raises RequestError if the plug-in was not built.
    """
    if environment.get("NCCL_PROFILER_PLUGIN"):
        return {}
    return {"NCCL_PROFILER_PLUGIN": str(nccl_plugin_path()), "HVPROF_DIRECTORY": str(run.hvprof.absolute())}


def gradients_environment(run: RunFolder, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables that make a Python program record its Horovod gradients.

    `environment`: the rank's environment so far. A program that does not import `horovod.torch`
    records nothing. Raises RequestError if PYTHONPATH cannot hold the recorder's folder.
    """
    folder = str(Path(hvscale.profiling.record.rank_side.__path__[0]).absolute())
    if os.pathsep in folder:
        raise RequestError(f"{folder}: PYTHONPATH cannot hold a path with a colon: install hvscale elsewhere")
    others = environment.get("PYTHONPATH", "")
    variables = {
        "PYTHONPATH": f"{folder}{os.pathsep}{others}" if others else folder,
        "HVSCALE_GRADIENTS": str(run.hvprof.absolute()),
    }
    with suppress(RequestError):  # without it, ranks do the same in Python
        variables["HVSCALE_STEP_LOG"] = str(built_library(STEP_LOG).absolute())
    return variables


def trim_profiles(run: RunFolder) -> None:
    """Truncates the unused end of each hvprof and NCCL profile whose process has ended.

    Leaves profiles in use and damaged profiles unchanged. Removes unfinished files of killed
    processes.
    """
    _trim(run.hvprof, "rank-*.hvp", profile_file.used_bytes)
    _trim(run.hvprof, "nccl-*.hvn", nccl_file.used_bytes)


def _trim(folder: Path, pattern: str, used_bytes: Callable[[Path], int]) -> None:
    for path in folder.glob(pattern):
        # The recording process holds a shared lock: truncating the file under its mapping would
        # kill it.
        with suppress(OSError, RequestError), path.open("r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            used = used_bytes(path)
            if path.stat().st_size > used:
                stream.truncate(used)
    # A process that is killed before its file has a header leaves a temporary name.
    for path in folder.glob("." + pattern.partition("*")[0] + "*"):
        with suppress(OSError), open_regular(path) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
