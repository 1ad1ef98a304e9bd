"""How Horovod's ranks wait for messages where they share cores: asleep, instead of polling.

`hvd.synchronize()` polls, which takes the core from the thread of Horovod that ends the wait. On
two cores, steps of four ranks over Gloo are 1.7 times as fast asleep (benchmarks/RESULTS.md).
"""

from collections.abc import Mapping

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunRecord
from hvscale.launch.placements import PLACEMENTS

VARIABLE = "HVSCALE_WAIT"  # native/init_marker/waiting.c reads it
SLEEP, POLL = "sleep", "poll"
BUSY_THREADS = 2  # of a rank: the program's, and Horovod's


def environment(record: RunRecord, passed: Mapping[str, str]) -> dict[str, str]:
    """Variables that make the ranks sleep; none where each has enough cores, or the user says poll.

    `passed`: the user's variables, which may choose. The cores of other hosts are unknown, so ranks
    there poll. Raises RequestError if the user chose anything but these two.
    """
    chosen = passed.get(VARIABLE)
    if chosen not in (None, SLEEP, POLL):
        raise RequestError(f"--env {VARIABLE}={chosen}: choose {SLEEP} or {POLL}")
    share_cores = PLACEMENTS.get(record.placement).on_this_machine and BUSY_THREADS * record.np > record.host.cores
    sleeps = chosen == SLEEP or (chosen is None and share_cores and record.np > 1)
    return {VARIABLE: SLEEP} if sleeps else {}
