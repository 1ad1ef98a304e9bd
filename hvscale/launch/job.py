"""What is to be started: plain data, no decisions."""

from dataclasses import dataclass, field
from pathlib import Path

from hvscale.launch.nodes.nodes import Nodes


@dataclass(frozen=True)
class Job:
    """np ranks of one command.

    `environment` is the whole environment of the launcher and of every rank; `rank_environment` is
    added to it for the user's command alone (a preloaded library must not load into mpirun or into
    rank.py). The ranks run on `nodes`, which hold np slots in all.
    """

    np: int
    command: list[str]
    run: Path
    environment: dict[str, str]
    nodes: Nodes
    rank_environment: dict[str, str] = field(default_factory=dict)
