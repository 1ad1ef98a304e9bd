"""What Linux counts of each rank: `perf stat` around it, where the machine has it."""

import re
import shutil

from pydantic import BaseModel

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.launch.supervision.output import lines_of

# By perf's names.
EVENTS = {
    "task-clock": "task_clock_seconds",
    "context-switches": "context_switches",
    "cache-misses": "cache_misses",
    "instructions": "instructions",
    "cycles": "cycles",
}
NOT_INSTALLED = "perf is not installed (Debian: apt install linux-perf)"
# value,unit,event,...: what -x, prints; the event may carry the privilege that it was counted at.
LINE = re.compile(r"([0-9.]+|<not supported>|<not counted>),([^,]*),([a-z-]+)(?::[a-z]+)?,")
UNITS = {"msec": 1e-3, "nsec": 1e-9, "": 1.0}


class Counters(BaseModel):
    """Sums over the ranks of one start, from start to end of the program; None: this machine does not support it."""

    task_clock_seconds: float | None = None
    context_switches: float | None = None
    cache_misses: float | None = None
    instructions: float | None = None
    cycles: float | None = None

    @property
    def instructions_per_cycle(self) -> float | None:
        return self.instructions / self.cycles if self.instructions is not None and self.cycles else None


def with_perf(command: list[str]) -> list[str]:
    """The command with perf around it. Raises RequestError where there is none."""
    perf = shutil.which("perf")
    if perf is None:
        raise RequestError(NOT_INSTALLED)
    return [perf, "stat", "-x,", "-e", ",".join(EVENTS), "--", *command]


def read_counters(run: RunFolder, np: int) -> Counters:
    """From the ranks' logs, where perf writes them at the end. Raises RequestError where a rank's are not there."""
    sums: dict[str, float] = {}
    lacking = set()
    for rank in range(np):
        found = [LINE.match(line) for line in lines_of(run.log(rank))]
        of_rank = {match[3]: match for match in found if match is not None and match[3] in EVENTS}
        if len(of_rank) < len(EVENTS):
            raise RequestError(f"perf has not said what it counted: see {run.log(rank)}")
        for event, match in of_rank.items():
            if match[1].startswith("<"):
                lacking.add(event)
            else:
                sums[event] = sums.get(event, 0.0) + float(match[1]) * UNITS[match[2]]
    return Counters(**{EVENTS[event]: value for event, value in sums.items() if event not in lacking})
