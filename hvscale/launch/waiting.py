"""How Horovod's ranks wait for messages where they share cores: over Gloo asleep, over MPI polling.

`hvd.synchronize()` polls, which takes the core from the thread of Horovod that ends the wait.
Gloo's threads sleep until a message comes, and get the core late: on two cores, steps of four to 16
ranks are 1.4 to 2.2 times as fast asleep. MPI's threads poll, too, and gain nothing: steps of eight
and 16 ranks take up to a fifth longer asleep (benchmarks/RESULTS.md).
"""

import math
from collections.abc import Mapping

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunRecord
from hvscale.launch.placements import PLACEMENTS

VARIABLE = "HVSCALE_WAIT"
SLEEP, POLL = "sleep", "poll"
BUSY_THREADS = 2  # of a rank: the program's, and Horovod's
# Between two polls; native/init_marker/waiting.c reads it.
PAUSE_VARIABLE = "HVSCALE_WAIT_MICROSECONDS"
# Each rank that wakes takes its core from others. Horovod's cycle takes 1 ms by default.
MICROSECONDS_PER_RANK, MOST_MICROSECONDS = 100, 1000


def environment(record: RunRecord, passed: Mapping[str, str], has_mpi: bool) -> dict[str, str]:
    """Variables that make the ranks sleep; none over MPI, where each has two cores, or by request.

    `passed`: the user's variables, which may choose. The cores of other hosts are unknown, so ranks
    there poll. Raises RequestError if the user chose anything but these two.
    """
    chosen = passed.get(VARIABLE)
    if chosen not in (None, SLEEP, POLL):
        raise RequestError(f"--env {VARIABLE}={chosen}: choose {SLEEP} or {POLL}")
    local = record.np if PLACEMENTS.get(record.placement).on_this_machine else 1
    share_cores = BUSY_THREADS * local > record.host.cores
    if chosen == POLL or (chosen is None and (has_mpi or not share_cores or local == 1)):
        return {}
    ranks_on_a_core = math.ceil(local / record.host.cores)
    return {PAUSE_VARIABLE: str(min(MICROSECONDS_PER_RANK * ranks_on_a_core, MOST_MICROSECONDS))}
