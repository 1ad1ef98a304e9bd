"""The label on everything outside the run folder: its run, and the controller process, to tell
whether that still runs.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUN = "hvscale.run"
CONTROLLER = "hvscale.controller"
PREFIX = "hvscale"


@dataclass(frozen=True)
class RunLabel:
    """`controller` is `<process id>@<its start, clock ticks since boot>`: an id alone is given
    again to others.
    """

    run: str
    controller: str

    @classmethod
    def of(cls, run: Path) -> "RunLabel":
        return cls(str(run), f"{os.getpid()}@{start_of(os.getpid())}")

    @classmethod
    def read(cls, labels: Mapping[str, str]) -> "RunLabel":
        return cls(labels.get(RUN, "an unknown run"), labels.get(CONTROLLER, ""))

    @property
    def labels(self) -> dict[str, str]:
        return {RUN: self.run, CONTROLLER: self.controller}

    @property
    def filters(self) -> list[str]:
        """The labels as Docker wants them to find what carries them."""
        return [f"{name}={value}" for name, value in self.labels.items()]

    @property
    def id(self) -> str:
        """Eight characters that name the run where a path is too long."""
        return hashlib.sha256(os.fsencode(self.run)).hexdigest()[:8]

    def name(self, part: object) -> str:
        return f"{PREFIX}-{self.id}-{part}"

    @property
    def is_live(self) -> bool:
        """Whether the controller that made it still runs."""
        pid, _, start = self.controller.partition("@")
        return pid.isdigit() and start_of(int(pid)) == start


def start_of(pid: int) -> str | None:
    """When a process of this machine was started, in clock ticks since boot; None when there is
    none.
    """
    try:
        # The program's name, in parentheses, may hold spaces: the fields are counted behind it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
