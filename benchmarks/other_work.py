"""The processor time of other work beside a benchmark, which makes its figures worthless."""

import os
import resource
import time
from pathlib import Path

from hvscale.launch.supervision.processes import descendants, reap_orphans

BUSY = 0.1  # cores of other work, from which on a run counts as disturbed
LOOK_SECONDS = 1.0
ORPHAN_SECONDS = 2.0


class OtherWork:
    """From its creation on: the cores that processes other than this one's children kept busy.

    Time that a hypervisor gave to other machines counts too. Child processes count when they have
    ended, so that all started since then must have. Start them under `adopt_orphans`: the time of a
    process whose parent ended first is known only to the process that adopts it.
    """

    def __init__(self) -> None:
        self.began, self.busy, self.own = time.monotonic(), busy_seconds(), own_seconds()

    @property
    def cores(self) -> float:
        """The mean number of cores so far."""
        collect_orphans()
        other = busy_seconds() - self.busy - (own_seconds() - self.own)
        return max(0.0, other / (time.monotonic() - self.began))

    @classmethod
    def now(cls) -> float:
        """The cores that other work keeps busy at present."""
        looked = cls()
        time.sleep(LOOK_SECONDS)
        return looked.cores


def collect_orphans() -> None:
    """Wait a moment for adopted processes to end."""
    end = time.monotonic() + ORPHAN_SECONDS
    reap_orphans()
    while any(descendants(os.getpid())) and time.monotonic() < end:
        time.sleep(0.02)
        reap_orphans()


def busy_seconds() -> float:
    """The time that this process's cores have been busy since the machine started.

    Interrupts are left out: the kernel handles some of the benchmark's own messages in them.
    """
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    times = {fields[0]: [int(field) for field in fields[1:9]] for fields in lines if fields[0].startswith("cpu")}
    user, nice, system, steal = (
        sum(times[f"cpu{core}"][column] for core in os.sched_getaffinity(0)) for column in (0, 1, 2, 7)
    )
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """The processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
