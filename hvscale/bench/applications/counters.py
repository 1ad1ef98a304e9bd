"""Hardware and kernel event counts of each rank, by `perf stat` if it is installed."""

import re
import shutil

from pydantic import BaseModel

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.launch.supervision.output import lines_of

# By perf's event names.
EVENTS = {
    "task-clock": "task_clock_seconds",
    "context-switches": "context_switches",
    "cache-misses": "cache_misses",
    "instructions": "instructions",
    "cycles": "cycles",
}
NOT_INSTALLED = "perf is not installed (Debian: apt install linux-perf)"
# Output of `perf stat -x,`: value,unit,event,...; the event may end with a privilege level.
LINE = re.compile(r"([0-9.]+|<not supported>|<not counted>),([^,]*),([a-z-]+)(?::[a-z]+)?,")
UNITS = {"msec": 1e-3, "nsec": 1e-9, "": 1.0}


class Counters(BaseModel):
    """Sums over the ranks of one run of the program; None if this machine does not support the
    event.
    """

    task_clock_seconds: float | None = None
    context_switches: float | None = None
    cache_misses: float | None = None
    instructions: float | None = None
    cycles: float | None = None

    @property
    def instructions_per_cycle(self) -> float | None:
        return self.instructions / self.cycles if self.instructions is not None and self.cycles else None


def with_perf(command: list[str]) -> list[str]:
    """The command under perf. Raises RequestError if perf is not installed."""
    perf = shutil.which("perf")
    if perf is None:
        raise RequestError(NOT_INSTALLED)
    return [perf, "stat", "-x,", "-e", ",".join(EVENTS), "--", *command]


def read_counters(run: RunFolder, np: int) -> Counters:
    """The counts that perf writes at the end of each rank's log. Raises RequestError if they are
    missing.
    """
    sums: dict[str, float] = {}
    unsupported = set()
    for rank in range(np):
        found = [LINE.match(line) for line in lines_of(run.log(rank))]
        of_rank = {match[3]: match for match in found if match is not None and match[3] in EVENTS}
        if len(of_rank) < len(EVENTS):
            raise RequestError(f"perf printed no counts: see {run.log(rank)}")
        for event, match in of_rank.items():
            if match[1].startswith("<"):
                unsupported.add(event)
            else:
                sums[event] = sums.get(event, 0.0) + float(match[1]) * UNITS[match[2]]
    return Counters(**{EVENTS[event]: value for event, value in sums.items() if event not in unsupported})
