"""How much of the disk the profiles of a job's ranks may take."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvscale.core.errors import RequestError
from hvscale.core.numbers import read_whole
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.core.units import MIB
from hvscale.profiling.read.missing_profiles import PROFILE_BYTES
from hvscale.profiling.read.profile_file import RECORD, RECORDS_START

RANK, JOB = "HVPROF_MIB", "HVPROF_JOB_MIB"
MOST_RANK_MIB = PROFILE_BYTES // MIB
JOB_MIB = 8192  # of hvprof's rings of all ranks
LARGEST_MIB = 1 << 40
COUNTERS_BYTES = 256 << 10  # of a file without a ring, for a program of some dozens of kinds of calls
DISK_SHARE = 2  # take at most 1 / 2 of what the disk has left


@dataclass(frozen=True)
class Disk:
    """A disk on which `ranks` ranks write their profiles."""

    name: str
    free_bytes: int
    ranks: int

    @property
    def ring_bytes(self) -> int:
        """What each rank's ring may take; negative if not even the counters have space."""
        return self.free_bytes // DISK_SHARE // self.ranks - RECORDS_START


def disk_of(run: RunFolder, record: RunRecord) -> Disk:
    """The disk of the run folder."""
    return Disk(f"the disk of {run.path}", shutil.disk_usage(run.path).free, record.np)


def smallest_profile_bytes(record: RunRecord, environment: Mapping[str, str]) -> int:
    """The disk space that a rank needs for any profile."""
    if only_counts(record):
        return COUNTERS_BYTES
    return RECORDS_START + (read_whole(environment.get(RANK, ""), 1, LARGEST_MIB) or 1) * MIB


def only_counts(record: RunRecord) -> bool:
    """Whether the ranks keep counters and no single calls."""
    return record.launch.get("record") == "counters"


def ring_environment(record: RunRecord, environment: Mapping[str, str], disks: Sequence[Disk]) -> dict[str, str]:
    """HVPROF_MIB for the ranks, so that all profiles fit on their disks; empty if the user chose
    it.

    hvprof's rings of all ranks take at most $HVPROF_JOB_MIB, and its files half of what each disk
    has left. NCCL's plug-in takes as much again: only the ranks know whether they load it. Adds a
    warning if each rank keeps fewer messages for that. Raises RequestError if the variable is no
    number.
    """
    if environment.get(RANK):
        return {}
    asked = environment.get(JOB) or str(JOB_MIB)
    job = read_whole(asked, 1, LARGEST_MIB)
    if job is None:
        raise RequestError(
            f"{JOB}={asked}: give a whole number of MiB for the profiles of all ranks, such as {JOB_MIB}"
        )
    fullest = min(disks, key=lambda disk: disk.ring_bytes)
    of_job = job * MIB // record.np
    mib = min(max(min(of_job, fullest.ring_bytes) // MIB, 1), MOST_RANK_MIB)
    if mib < MOST_RANK_MIB and not only_counts(record):
        full = f"{fullest.name} has {fullest.free_bytes // MIB} MiB left"
        bound = f"{JOB}={job}" if of_job <= fullest.ring_bytes else full
        record.warnings.append(
            f"each rank's profile keeps its last {mib * MIB // RECORD.itemsize} messages ({mib} MiB), because {bound}; "
            "the breakdown's totals count all of them"
        )
    return {RANK: str(mib)}
