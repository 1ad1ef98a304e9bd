"""Having a job record its collectives: the environment its ranks need, and what is done with the files afterwards."""

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from hvscale.core.built_library import built_library, preloaded
from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.profile_file import RECORD, RECORDS_START, read_header

LIBRARY = "libhvprof.so"
# The same with the names of the functions with large counts: an MPI library that has none would seem to have them.
LARGE_COUNTS_LIBRARY = "libhvprof-large-counts.so"


def library_path(large_counts: bool = False) -> Path:
    """Where the built hvprof lies that is for an MPI library with, or without, large counts. Raises RequestError when it was not built."""
    return built_library(LARGE_COUNTS_LIBRARY if large_counts else LIBRARY)


def preload_environment(
    run: RunFolder, environment: Mapping[str, str] = os.environ, *, large_counts: bool = False
) -> dict[str, str]:
    """What every rank needs in its environment to record its MPI collectives into the run; `environment` is what it has.

    `large_counts`: whether its MPI library has the functions with large counts of MPI 4.

    Raises RequestError when the library is missing, or lies where LD_PRELOAD cannot name it.
    """
    return {**preloaded(library_path(large_counts), environment), "HVPROF_DIRECTORY": str(run.hvprof.absolute())}


def timeline_environment(run: RunFolder) -> dict[str, str]:
    """What every rank needs in its environment for Horovod to write its timeline into the run (its rank 0 does)."""
    return {"HOROVOD_TIMELINE": str(run.timeline.absolute())}


def trim(run: RunFolder) -> None:
    """Gives back the unused end of every profile whose process has ended; a file that is in use or damaged stays as it is."""
    trim_files(run.hvprof, "rank-*.hvp", _used_bytes)


def trim_files(folder: Path, pattern: str, used_bytes: Callable[[Path], int]) -> None:
    """The same for files of any kind that a process maps and holds a shared lock on; removes unfinished ones (`.` in front)."""
    for path in folder.glob(pattern):
        # The recording process holds a shared lock: cutting a file that it has mapped would kill it.
        with suppress(OSError, RequestError), path.open("r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            used = used_bytes(path)
            if path.stat().st_size > used:
                stream.truncate(used)
    # Left by a process that was killed before its file had a header.
    for path in folder.glob("." + pattern.partition("*")[0] + "*"):
        with suppress(OSError), open_regular(path) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _used_bytes(path: Path) -> int:
    with open_regular(path) as stream:
        header = read_header(path, stream)
    return RECORDS_START + min(header.reserved_records, header.capacity) * RECORD.itemsize
