"""Having a job record its NCCL calls: the environment its ranks need, and what is done with the files afterwards."""

import os
from collections.abc import Mapping
from pathlib import Path

from hvscale.core.built_library import built_library
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.nccl_file import HEADER, RECORD, read_nccl_profile
from hvscale.profiling.record.hvprof import trim_files

PLUGIN = "libhvprof-nccl.so"


def plugin_path() -> Path:
    """Where the built plug-in lies. Raises RequestError when it was not built."""
    return built_library(PLUGIN)


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
    trim_files(run.hvprof, "nccl-*.hvn", _used_bytes)


def _used_bytes(path: Path) -> int:
    profile = read_nccl_profile(path)
    return HEADER.itemsize + min(profile.recorded, profile.capacity) * RECORD.itemsize
