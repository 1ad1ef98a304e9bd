"""A deadline for the first rank: a launcher may hang or fail before it starts any rank."""

import time
from pathlib import Path

from hvscale.core.run_folder import Library, RunFolder
from hvscale.launch import flavours
from hvscale.launch.job import Job
from hvscale.launch.supervision import programs
from hvscale.launch.supervision.outcome import Failure, launcher_name


class FirstRankDeadline:
    """The time limit for a job's first rank, counted from the object's creation."""

    def __init__(self, job: Job) -> None:
        self.run = RunFolder(job.run)
        self.seconds = programs.first_rank_seconds(0 if job.nodes.without_agents else len(job.nodes.nodes))
        self.until = time.monotonic() + self.seconds
        self._has_begun = False

    def has_begun(self) -> bool:
        """Whether hvrank has run for any rank.

        The log counts too: on a full disk hvrank cannot write anything else.
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
        """Why no rank started, once the launcher has ended, if a retry may help; empty otherwise.

        `hung`: the launcher was ended because `is_late`. `ended_badly`: its exit status was not 0.
        """
        if self.has_begun():
            return ""
        if hung:
            return f"{launcher_name(library)} started no rank within {self.seconds:g} s and was killed"
        transient = flavours.get(library.flavour).transient_failure
        if ended_badly and transient is not None and transient[0].search(self.log.read_bytes()):
            return f"{launcher_name(library)} started no rank because {transient[1]}"
        return ""

    def failure(self, library: Library, reason: str) -> Failure:
        """The failure to report if the retry fails too."""
        words = f"check that `{library.launcher} -np 1 true` works" if library.launcher else "see the log"
        return Failure(
            None,
            f"{reason}, twice: {words}, or allow more time with {programs.FIRST_RANK_VARIABLE}=SECONDS",
            self.log,
        )

    @property
    def log(self) -> Path:
        return self.run.logs / "launcher.log"

    def keep_log(self) -> Path:
        """Rename the launcher's log so that the retry does not overwrite it; return the
        new path.
        """
        return self.log.rename(self.run.logs / "launcher-1.log")
