"""How a run's ranks ended, and what made the run fail."""

import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvscale.core.documents import parse_json
from hvscale.core.errors import EXIT_RANK_FAILED, EXIT_TRY_AGAIN, RankFailedError
from hvscale.core.files import read_text
from hvscale.core.run_folder import Library, RankEnd, RunFolder
from hvscale.launch.job import Job
from hvscale.launch.supervision import programs
from hvscale.launch.supervision.init_marker import InitDeadline
from hvscale.launch.supervision.output import last_lines

LOST_SECONDS = 3.0


@dataclass(frozen=True)
class Failure:
    """Why a run failed. `rank`: the one that caused it, None when none did; `what`: the cause in
    words; `log`: where to read more.
    """

    rank: int | None
    what: str
    log: Path
    exit_status: int = EXIT_RANK_FAILED

    def error(self, run: RunFolder) -> RankFailedError:
        """With the last lines of its log, or of the launcher's when the rank wrote nothing."""
        for log in (self.log, run.logs / "launcher.log"):
            if lines := last_lines(log):
                what = f"{self.what}; {'its' if log == self.log else 'the'} last lines, from {log}:"
                return RankFailedError(what, lines, self.exit_status)
        return RankFailedError(f"{self.what}; it wrote nothing", [], self.exit_status)


def read_ranks(run: RunFolder) -> list[RankEnd]:
    """What the ranks have written about themselves so far, in order of rank; a damaged file counts
    as not written.
    """
    ranks = []
    for path in sorted((run.path / "ranks").glob("rank-?????.json")):
        with suppress(OSError, ValueError):  # of JSON and of pydantic
            ranks.append(RankEnd.model_validate(parse_json(read_text(path))))
    return ranks


def first_failed(ranks: list[RankEnd]) -> RankEnd | None:
    """The rank that ended badly before the others did, by its own host's clock.

    When the launcher killed all at once, as Hydra does after an abort, it is the one that wrote
    last: its abort message.
    """
    failed = [entry for entry in ranks if entry.signal or entry.exit_status]
    by_itself = [entry for entry in failed if not entry.killed_by_launcher]
    if failed and not by_itself:
        return max(failed, key=lambda entry: entry.last_output_at)
    return min(by_itself, key=lambda entry: entry.ended_at or float("inf"), default=None)


def init_timeout(job: Job, init_deadline: InitDeadline, late: list[int]) -> Failure | None:
    if not late:
        return None
    rank = late[0]
    return Failure(
        rank,
        f"rank {rank} on {job.nodes.node_of(rank).name} {init_deadline.describe(late)}",
        RunFolder(job.run).log(rank),
    )


def launcher_name(library: Library) -> str:
    """What started the ranks, in words."""
    return library.launcher or f"the start of {library.flavour}'s ranks"


def launcher_killed(library: Library, run: RunFolder, killed_by: int) -> Failure | None:
    """The launcher's own end when a signal from outside killed it: its ranks died of that.
    `killed_by` is 0 when none did.
    """
    if not killed_by or not library.launcher:
        return None
    hint = ": look in the kernel's log (dmesg) whether memory ran out" if killed_by == signal.SIGKILL else ""
    how = f"{describe_exit(-killed_by)}, which took its ranks down{hint}"
    return Failure(None, f"{library.launcher} {how}", run.logs / "launcher.log")


def hanging_launcher(job: Job, library: Library) -> Failure:
    """What keeps a launcher running after all ranks have ended: what its agents go through, where
    that does not answer any more.
    """
    log = RunFolder(job.run).logs / "launcher.log"
    for name, cause in job.nodes.lost().items():
        return Failure(None, f"all ranks have ended, but {name} is lost: {cause}", log)
    who = launcher_name(library)
    return Failure(None, f"{who} still ran {programs.answer_seconds():g} s after all ranks had ended", log)


def find_failure(job: Job, library: Library, ranks: list[RankEnd], statuses: list[int]) -> Failure | None:
    """What explains the rest: a node that was lost, else the first rank that failed, else the
    launcher, else a rank that stopped reporting.
    """
    run = RunFolder(job.run)
    first = first_failed(ranks)
    # Open MPI's mpirun ends with status 0 when it loses a node: the ranks of other nodes have to
    # report how they ended.
    ended = {entry.rank for entry in ranks if entry.exit_status is not None}
    silent = [] if job.nodes.without_agents else [rank for rank in range(job.np) if rank not in ended]
    if first is None and not silent and not any(statuses):
        return None
    for name, cause in find_lost_nodes(job, bool(silent)).items():
        rank = job.nodes.ranks_of(name)[0]
        return Failure(rank, f"rank {rank} on {name} is lost: {cause}", run.log(rank))
    if first is not None:
        how = f"was killed by {first.signal}" if first.signal else describe_exit(first.exit_status or 0)
        status = EXIT_TRY_AGAIN if first.exit_status == EXIT_TRY_AGAIN else EXIT_RANK_FAILED
        return Failure(first.rank, f"rank {first.rank} on {first.host} {how}", run.log(first.rank), status)
    if any(statuses):
        who = library.launcher or f"rank {next(rank for rank, status in enumerate(statuses) if status)}"
        how = describe_exit(next(status for status in statuses if status))
        return Failure(None, f"{who} {how}", run.logs / "launcher.log")
    who = f"rank {silent[0]} on {job.nodes.node_of(silent[0]).name}"
    return Failure(
        silent[0], f"{who} has not said how it ended: it was lost, or cannot write into {run.path}", run.log(silent[0])
    )


def find_lost_nodes(job: Job, some_are_silent: bool) -> dict[str, str]:
    """How nodes were lost. Where ranks are silent, those who know of it get a moment: Docker notes
    a container's end after its processes'.
    """
    deadline = time.monotonic() + (LOST_SECONDS if some_are_silent else 0)
    while not (lost := job.nodes.lost()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return lost


def describe_exit(status: int) -> str:
    """A process's exit status in words; negative is the signal that killed it, as subprocess has
    it.
    """
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
