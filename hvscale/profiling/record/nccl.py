"""Makes a job record its NCCL calls: the environment of its ranks, and truncating the files
afterwards.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from hvscale.core.built_library import built_library
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.nccl_file import HEADER, RECORD, read_nccl_profile
from hvscale.profiling.record.hvprof import trim_files

PLUGIN = "libhvprof-nccl.so"


def plugin_path() -> Path:
    """The path of the plug-in. Raises RequestError if it was not built."""
    return built_library(PLUGIN)


def nccl_environment(run: RunFolder, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables with which NCCL 2.23 and later record their calls into the run.

    Empty if `environment`, what the rank has, already names a plug-in: NCCL loads only one. A job
    without NCCL never loads it. Raises RequestError if the plug-in is missing.
    """
    if environment.get("NCCL_PROFILER_PLUGIN"):
        return {}
    return {"NCCL_PROFILER_PLUGIN": str(plugin_path()), "HVPROF_DIRECTORY": str(run.hvprof.absolute())}


def trim_nccl(run: RunFolder) -> None:
    """Truncates the unused end of every NCCL profile whose process has ended. Files in use and
    damaged files are unchanged.
    """
    trim_files(run.hvprof, "nccl-*.hvn", _used_bytes)


def _used_bytes(path: Path) -> int:
    profile = read_nccl_profile(path)
    return HEADER.itemsize + min(profile.recorded, profile.capacity) * RECORD.itemsize
