"""Finds out why ranks left no profile."""

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

from hvscale.core.files import open_regular, read_bytes
from hvscale.core.run_folder import OPEN_STATES, RunFolder, RunRecord, ranks_in_words

STAYED = "the profiles of"  # starts the warning of a run about profiles that were not collected
PREFIX = "hvprof: "  # of each line that hvprof writes to stderr
PROFILE_BYTES = 64 << 20  # hvprof reserves at most this for each rank, unless HVPROF_MIB is set
SUFFIX = ": the job continues without a profile"
# How its lines end that say why there is no profile; other lines are warnings.
ENDINGS = (SUFFIX, ": start the job without LD_PRELOAD")
SEARCHED_LOG_BYTES = 1 << 20  # hvprof writes its line when a rank starts


def why_missing(run: RunFolder, record: RunRecord, ranks: list[int]) -> dict[int, str]:
    """Why `ranks` have no profile, by rank; without those for which no cause was found."""
    causes = {rank: line for rank in ranks if (line := _message_in(run.log(rank))) is not None}
    silent = [rank for rank in ranks if rank not in causes]
    if not silent:
        return causes
    program = shutil.which(record.command[0], path=None)
    linking = _linking_problem(Path(record.working_directory, record.command[0] if program is None else program))
    found = [*_stayed(run, record), *([linking] if linking is not None else [])]
    # A full disk may have lost the rank's message, too.
    if not found and not causes and (full := _full_disk(run.hvprof)) is not None:
        found.append(full)
    return {**causes, **(dict.fromkeys(silent, "; ".join(found)) if found else {})}


def missing_lines(causes: dict[int, str]) -> list[str]:
    """A line for each cause, with its ranks."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for rank, cause in sorted(causes.items()):
        ranks[cause].append(rank)
    return [f"no profile of {ranks_in_words(own)}: {cause}" for cause, own in ranks.items()]


def _stayed(run: RunFolder, record: RunRecord) -> list[str]:
    """Where the profiles are that were not collected from the ranks' nodes."""
    said = [text for text in record.warnings if text.startswith(STAYED)]
    folder = record.rank_environment.get("HVPROF_DIRECTORY")
    if said or folder is None or Path(folder) == run.hvprof.absolute() or not record.launch.get("record_dir"):
        return said
    if record.was_abandoned:
        return [f"{STAYED} all ranks stayed on their nodes in {folder}: collect them with `hvscale cleanup {run.path}`"]
    is_open = record.state in OPEN_STATES
    return [f"{STAYED} all ranks are on their nodes in {folder} until the job ends"] if is_open else []


def _full_disk(folder: Path) -> str | None:
    """The problem, if the folder's disk has no space for another profile."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return None
    if free >= PROFILE_BYTES:
        return None
    return (
        f"the disk of {folder} has {free >> 20} MiB left, and each rank's profile needs up to {PROFILE_BYTES >> 20} MiB: "
        "free some space, or set HVPROF_MIB lower"
    )


def _message_in(log: Path) -> str | None:
    """Why a rank has no profile, as hvprof says in its output."""
    try:
        with open_regular(log) as stream:
            lines = stream.read(SEARCHED_LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    message = next((line for line in lines if line.startswith(PREFIX) and line.endswith(ENDINGS)), None)
    return message.removeprefix(PREFIX).removesuffix(SUFFIX) if message is not None else None


def _linking_problem(program: Path) -> str | None:
    """The problem, if hvprof cannot wrap the MPI calls of `program` because of its linking."""
    try:
        content = read_bytes(program)
        if not content.startswith(b"\x7fELF"):
            return None
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    except OSError:
        return None
    if listed.returncode != 0 or "statically linked" in listed.stdout:
        return f"{program} is linked statically, so its MPI calls cannot be recorded: link MPI dynamically"
    if b"MPI_Init\0" not in content:  # a linker stores it as the end of PMPI_Init, if that is there
        return None
    if "libmpi" in listed.stdout:
        return _wrappers_problem(program)
    if b"\0dlsym\0" in content and not _defines_mpi(program, "--extern-only"):
        return f"{program} loads its MPI library at run time (dlopen), so its MPI calls cannot be recorded: link the program with the library"
    return f"{program} contains a static MPI library, so its MPI calls cannot be recorded: link the shared library"


def _wrappers_problem(program: Path) -> str | None:
    """The problem, if the program itself wraps the MPI library's functions."""
    if not _defines_mpi(program, "--dynamic"):
        return None
    return (
        f"{program} contains another tool's wrappers of MPI, so its MPI calls cannot be recorded: link it without them"
    )


def _defines_mpi(program: Path, symbols: str) -> bool:
    """Whether the program itself defines MPI functions. `symbols`: the option of nm to use."""
    try:
        listed = subprocess.run(["nm", "--defined-only", symbols, program], capture_output=True, text=True, check=False)
    except OSError:  # binutils are not installed
        return False
    return "MPI_Init" in listed.stdout.split()
