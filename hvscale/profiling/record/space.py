"""How much of the disk the profiles of a job's ranks may take."""

import shutil
from collections.abc import Mapping

from hvscale.core.errors import RequestError
from hvscale.core.numbers import read_whole
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.core.units import MIB
from hvscale.profiling.read.missing_profiles import PROFILE_BYTES
from hvscale.profiling.read.profile_file import RECORD, RECORDS_START

RANK, JOB = "HVPROF_MIB", "HVPROF_JOB_MIB"
MOST_RANK_MIB = PROFILE_BYTES // MIB
JOB_MIB = 8192  # of the rings of all ranks
LARGEST_MIB = 1 << 40
DISK_SHARE = 2  # take at most 1 / 2 of what the disk has left


def ring_environment(run: RunFolder, record: RunRecord, environment: Mapping[str, str]) -> dict[str, str]:
    """HVPROF_MIB for the ranks, so that all profiles fit on the disk; empty if the user chose it.

    The rings of all ranks take at most $HVPROF_JOB_MIB, and the files half of what the disk has
    left. Adds a warning if each rank keeps fewer messages for that. Raises RequestError if the
    variable is no number.
    """
    if environment.get(RANK):
        return {}
    asked = environment.get(JOB) or str(JOB_MIB)
    job = read_whole(asked, 1, LARGEST_MIB)
    if job is None:
        raise RequestError(
            f"{JOB}={asked}: give a whole number of MiB for the profiles of all ranks, such as {JOB_MIB}"
        )
    left = shutil.disk_usage(run.path).free // DISK_SHARE
    ring = min(job * MIB // record.np, left // record.np - RECORDS_START)
    mib = min(max(ring // MIB, 1), MOST_RANK_MIB)
    if mib < MOST_RANK_MIB:
        bound = f"{JOB}={job}" if job * MIB <= left else f"the disk of {run.path} has {2 * left // MIB} MiB left"
        record.warnings.append(
            f"each rank's profile keeps its last {mib * MIB // RECORD.itemsize} messages ({mib} MiB), because {bound}; "
            "the breakdown's totals count all of them"
        )
    return {RANK: str(mib)}
