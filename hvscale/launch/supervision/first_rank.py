"""Whether any rank starts: a launcher may hang, or fail to listen for its ranks, before it has
started one.
"""

import time
from pathlib import Path

from hvscale.core.run_folder import Library, RunFolder
from hvscale.launch import flavours
from hvscale.launch.job import Job
from hvscale.launch.supervision import programs
from hvscale.launch.supervision.outcome import Failure, launcher_name


class FirstRankDeadline:
    """The limit within which one start of a job has to begin its first rank; it counts from the
    object's creation.
    """

    def __init__(self, job: Job) -> None:
        self.run = RunFolder(job.run)
        self.seconds = programs.first_rank_seconds(0 if job.nodes.without_agents else len(job.nodes.nodes))
        self.until = time.monotonic() + self.seconds
        self._has_begun = False

    def has_begun(self) -> bool:
        """Whether rank.py runs, or ran, for some rank. Its log counts, too: on a full disk it
        cannot write more.
        """
        self._has_begun = (
            self._has_begun
            or any((self.run.path / "ranks").glob("rank-?????.json"))
            or any(self.run.logs.glob("rank-?????.log"))
        )
        return self._has_begun

    def is_late(self) -> bool:
        return not self.has_begun() and time.monotonic() > self.until

    def retry_reason(self, library: Library, hung: bool, ended_badly: bool) -> str:
        """Why no rank has started, once the launcher has ended, when a second start may work; empty
        otherwise.

        `hung`: the launcher was ended because `is_late`. `ended_badly`: it ended with another
        status than 0.
        """
        if self.has_begun():
            return ""
        if hung:
            return f"{launcher_name(library)} started no rank within {self.seconds:g} s and was ended"
        transient = flavours.get(library.flavour).transient_failure
        if ended_badly and transient is not None and transient[0] in self.log.read_bytes():
            return f"{launcher_name(library)} started no rank because {transient[1]}"
        return ""

    def failure(self, library: Library, reason: str) -> Failure:
        """What to report when the second start failed, too."""
        words = f"`{library.launcher} -np 1 true` must work here" if library.launcher else "look at the log"
        return Failure(
            None,
            f"{reason}, twice: {words}; {programs.FIRST_RANK_VARIABLE}=SECONDS gives a slow start more time",
            self.log,
        )

    @property
    def log(self) -> Path:
        return self.run.logs / "launcher.log"

    def keep_log(self) -> Path:
        """Rename the launcher's log, so that a second start does not overwrite it; returns the new
        path.
        """
        return self.log.rename(self.run.logs / "launcher-1.log")
