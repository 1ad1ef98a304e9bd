"""Why a job left no profile."""

import shutil
import subprocess
from pathlib import Path

from hvscale.core.files import open_regular, read_bytes
from hvscale.core.run_folder import RunFolder, RunRecord

SAYS = "hvprof: "  # begins each line that the profiler writes into a rank's output
PROFILE_BYTES = 64 << 20  # hvprof takes so much for each rank at its start, where HVPROF_MIB says nothing else
LONGEST_LOG_BYTES = 1 << 20  # it speaks at the start of a rank


def reasons(run: RunFolder, record: RunRecord, ranks: list[int]) -> list[str]:
    """One line for each reason that can be found for which `ranks` have no profile; none where nothing is known."""
    said = sorted({line for rank in ranks if (line := _said(run.log(rank))) is not None})
    program = shutil.which(record.command[0], path=None)
    held = _held(Path(record.working_directory, record.command[0] if program is None else program))
    found = [*said, *([held] if held is not None else [])]
    if (
        not found and (full := _full(run.hvprof)) is not None
    ):  # then the rank's own words may not have fitted on it either
        found.append(full)
    return found


def _full(folder: Path) -> str | None:
    """Whether the folder's disk has no room for the profile of one more rank."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return None
    if free >= PROFILE_BYTES:
        return None
    return f"the disk of {folder} has {free >> 20} MiB left, and each rank's profile needs {PROFILE_BYTES >> 20} MiB: make room, or lower HVPROF_MIB"


def _said(log: Path) -> str | None:
    """The profiler's own words in a rank's output."""
    try:
        with open_regular(log) as stream:
            lines = stream.read(LONGEST_LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line for line in lines if line.startswith(SAYS)), None)


def _held(program: Path) -> str | None:
    """Whether `program` was linked in a way that leaves no place before its MPI library."""
    try:
        content = read_bytes(program)
        if not content.startswith(b"\x7fELF"):
            return None
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    except OSError:
        return None
    if listed.returncode != 0 or "statically linked" in listed.stdout:
        return f"{program} is linked statically, so nothing can be loaded before it: link it dynamically, MPI above all"
    if "libmpi" in listed.stdout or b"\0MPI_Init\0" not in content:
        return None
    if b"\0dlsym\0" in content and not _defines_mpi(program):
        return f"{program} loads its MPI library while it runs (dlopen), past what is loaded before it: link it with the library"
    return f"{program} holds an MPI library of its own (static), which cannot be seen from outside: link it with the shared one"


def _defines_mpi(program: Path) -> bool:
    """Whether MPI's functions are in the program itself, not only their names."""
    try:
        listed = subprocess.run(["nm", "--defined-only", program], capture_output=True, text=True, check=False)
    except OSError:  # no binutils here
        return False
    return "MPI_Init" in listed.stdout.split()
