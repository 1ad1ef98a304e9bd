"""Having a job record its NCCL calls: the environment its ranks need, and what is done with the files afterwards."""

import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import hvscale.profiling
from hvscale.errors import RequestError
from hvscale.profiling.nccl_file import HEADER, RECORD, read_nccl_profile
from hvscale.run_folder import RunFolder

PLUGIN = "libhvprof-nccl.so"


def plugin_path() -> Path:
    """Where the built plug-in lies. Raises RequestError when it was not built."""
    for folder in hvscale.profiling.__path__:
        path = Path(folder) / PLUGIN
        if path.is_file():
            return path
    raise RequestError(
        f"{PLUGIN} is not in this installation: build it again with `pip install .` where a C compiler is"
    )


def nccl_environment(run: RunFolder, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What every rank needs in its environment for NCCL, from 2.23 on, to record its calls into the run.

    Nothing when `environment`, what the rank has, names a plug-in already: NCCL loads one only. A job without NCCL never
    loads it. Raises RequestError when the plug-in is missing.
    """
    if environment.get("NCCL_PROFILER_PLUGIN"):
        return {}
    return {"NCCL_PROFILER_PLUGIN": str(plugin_path()), "HVPROF_DIRECTORY": str(run.hvprof.absolute())}


def trim_nccl(run: RunFolder) -> None:
    """Gives back the unused end of every NCCL profile whose process has ended; a file in use or damaged stays as it is."""
    for path in run.hvprof.glob("nccl-*.hvn"):
        with suppress(OSError, RequestError):
            _trim(path)
    # Left by a process that was killed before its file had a header.
    for path in run.hvprof.glob(".nccl-*"):
        with suppress(OSError), path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _trim(path: Path) -> None:
    with path.open("r+b") as stream:
        # The recording process holds a shared lock: cutting a file that it has mapped would kill it.
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        profile = read_nccl_profile(path)
        used = HEADER.itemsize + min(profile.recorded, profile.capacity) * RECORD.itemsize
        if path.stat().st_size > used:
            stream.truncate(used)
