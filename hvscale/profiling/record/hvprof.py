"""Makes a job record its collectives: the environment of its ranks, and truncating the files
afterwards.
"""

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
# The same with MPI 4's functions with large counts. Only for an MPI library that has them: programs
# believe what they find.
LARGE_COUNTS_LIBRARY = "libhvprof-large-counts.so"


def library_path(large_counts: bool = False) -> Path:
    """The path of hvprof for an MPI library with or without large counts. Raises RequestError if it
    was not built.
    """
    return built_library(LARGE_COUNTS_LIBRARY if large_counts else LIBRARY)


def preload_environment(
    run: RunFolder, environment: Mapping[str, str] = os.environ, *, large_counts: bool = False
) -> dict[str, str]:
    """The environment variables with which every rank records its MPI collectives into the run;
    `environment` is what it has.

    `large_counts`: whether its MPI library has the functions with large counts of MPI 4.

    Raises RequestError if the library is missing, or if LD_PRELOAD cannot name its path.
    """
    return {**preloaded(library_path(large_counts), environment), "HVPROF_DIRECTORY": str(run.hvprof.absolute())}


def timeline_environment(run: RunFolder) -> dict[str, str]:
    """The environment variables with which Horovod writes its timeline into the run (on rank 0)."""
    return {"HOROVOD_TIMELINE": str(run.timeline.absolute())}


def trim(run: RunFolder) -> None:
    """Truncates the unused end of every profile whose process has ended. Files in use and damaged
    files are unchanged.
    """
    trim_files(run.hvprof, "rank-*.hvp", _used_bytes)


def trim_files(folder: Path, pattern: str, used_bytes: Callable[[Path], int]) -> None:
    """The same for any files on which a process holds a shared lock; also removes unfinished ones
    (`.` in front).
    """
    for path in folder.glob(pattern):
        # The recording process holds a shared lock: truncating a file that it has mapped would kill
        # it.
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
