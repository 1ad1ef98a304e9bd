"""How a run's ranks ended, and why the run failed."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hvscale.core.documents import parse_json
from hvscale.core.errors import EXIT_RANK_FAILED, EXIT_TRY_AGAIN, RankFailedError
from hvscale.core.files import read_text
from hvscale.core.run_folder import Library, RankEnd, RunFolder, ranks_in_words
from hvscale.launch.job import Job
from hvscale.launch.supervision import programs
from hvscale.launch.supervision.init_marker import InitDeadline
from hvscale.launch.supervision.output import last_lines

LOST_SECONDS = 3.0
NODES_NAMED = 4  # in one sentence
HOROVOD_ENDED = "Horovod has been shut down. This was caused by an exception on one of the ranks"  # Horovod 0.28


@dataclass(frozen=True)
class Failure:
    """Why a run failed.

    `rank`: the rank that caused it, or None. `what`: the cause in words. `log`: the file that tells
    more.
    """

    rank: int | None
    what: str
    log: Path
    exit_status: int = EXIT_RANK_FAILED

    def error(self, run: RunFolder) -> RankFailedError:
        """The error with the last lines of its log, or of the launcher's if the rank
        wrote nothing.
        """
        for log in (self.log, run.logs / "launcher.log"):
            if lines := last_lines(log):
                return RankFailedError(f"{self.what}; see {log}", lines, self.exit_status)
        return RankFailedError(f"{self.what}; it wrote nothing", [], self.exit_status)


class RankRecords:
    """The records that a run's ranks write; a file is parsed again only after it has changed.

    A large job's files are looked at several times a second.
    """

    def __init__(self, run: RunFolder) -> None:
        self._folder = run.ranks
        self._known: dict[str, tuple[tuple[int, int], RankEnd]] = {}

    def read(self) -> list[RankEnd]:
        """The records so far, in order of rank; damaged files are skipped."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if fnmatchcase(entry.name, "rank-?????.json"):
                    with suppress(OSError, ValueError):  # of JSON and of pydantic
                        self._read(entry)
        return [self._known[name][1] for name in sorted(self._known)]

    def _read(self, entry: os.DirEntry[str]) -> None:
        found = entry.stat(follow_symlinks=False)
        version = (found.st_ino, found.st_mtime_ns)  # each write is a new file
        if entry.name not in self._known or self._known[entry.name][0] != version:
            record = RankEnd.model_validate(parse_json(read_text(Path(entry.path))))
            self._known[entry.name] = (version, record)


def first_failed(ranks: list[RankEnd]) -> RankEnd | None:
    """The rank that failed first, by its own host's clock.

    If the launcher killed all ranks, as Hydra does after an abort, it is the rank with the last
    output: its abort message.
    """
    failed = [entry for entry in ranks if entry.signal or entry.exit_status]
    by_itself = [entry for entry in failed if not entry.killed_by_launcher]
    if failed and not by_itself:
        return max(failed, key=lambda entry: entry.last_output_at)
    return min(by_itself, key=lambda entry: entry.ended_at or float("inf"), default=None)


def first_cause(command: list[str], ranks: list[RankEnd], run: RunFolder) -> RankEnd | None:
    """The rank that failed first, but not because another one had ended, if there is one."""
    first = first_failed(ranks)
    if first is None or not is_consequence(command, first, run):
        return first
    # The launcher ends the others by SIGTERM.
    others = [entry for entry in ranks if entry.signal != "SIGTERM" and not is_consequence(command, entry, run)]
    return first_failed(others) or first


def is_consequence(command: list[str], entry: RankEnd, run: RunFolder) -> bool:
    """Whether a rank failed because another one had ended: hvscale's own commands tell by their
    exit status, and other programs by Horovod's error.
    """
    if not entry.exit_status:
        return False
    if Path(command[0]).name == "hvscale":
        return entry.exit_status == EXIT_RANK_FAILED
    return any(HOROVOD_ENDED in line for line in last_lines(run.log(entry.rank)))


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
    """The launcher, in words."""
    return library.launcher or f"hvscale's launcher for {library.flavour}"


def launcher_killed(library: Library, run: RunFolder, killed_by: int) -> Failure | None:
    """The launcher's failure if a signal from outside killed it, and its ranks with it.

    `killed_by` is 0 if none did.
    """
    if not killed_by or not library.launcher:
        return None
    hint = "; check the kernel log (dmesg) for out-of-memory kills" if killed_by == signal.SIGKILL else ""
    how = f"{describe_exit(-killed_by)}, which took its ranks down{hint}"
    return Failure(None, f"{library.launcher} {how}", run.logs / "launcher.log")


def hanging_launcher(job: Job, library: Library) -> Failure:
    """Why the launcher still runs after all ranks ended: a node was lost, or the launcher hangs."""
    log = RunFolder(job.run).logs / "launcher.log"
    for name, cause in job.nodes.lost().items():
        return Failure(None, f"all ranks have ended, but {name} is lost: {cause}", log)
    who = launcher_name(library)
    return Failure(None, f"{who} still ran {programs.answer_seconds():g} s after all ranks had ended", log)


def find_failure(job: Job, library: Library, ranks: list[RankEnd], statuses: list[int]) -> Failure | None:
    """The first cause of the failure.

    In order: a lost node, the first rank that failed, the launcher, a rank that stopped reporting.
    """
    run = RunFolder(job.run)
    first = first_cause(job.command, ranks, run)
    # Open MPI's mpirun ends with status 0 when it loses a node, so each rank on another node must
    # report how it ended.
    ended = {entry.rank for entry in ranks if entry.exit_status is not None}
    silent = [] if job.nodes.without_agents else [rank for rank in range(job.np) if rank not in ended]
    if first is None and not silent and not any(statuses):
        return None
    if lost := find_lost_nodes(job, bool(silent)):
        return describe_lost(job, lost)
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
        silent[0], f"{who} did not report how it ended: it was lost, or cannot write to {run.path}", run.log(silent[0])
    )


def describe_lost(job: Job, lost: dict[str, str]) -> Failure:
    """The ranks that were lost with their nodes, for the first cause.

    `lost`: the cause of each node's loss, by node name.
    """
    cause = next(iter(lost.values()))
    names = [name for name in lost if lost[name] == cause]
    ranks = sorted(rank for name in names for rank in job.nodes.ranks_of(name))
    shown = ", ".join(names[:NODES_NAMED]) + (
        f" and {len(names) - NODES_NAMED} more" if len(names) > NODES_NAMED else ""
    )
    what = f"{ranks_in_words(ranks)} on {shown} {'is' if len(ranks) == 1 else 'are'} lost: {cause}"
    return Failure(ranks[0], what, RunFolder(job.run).log(ranks[0]))


def find_lost_nodes(job: Job, some_are_silent: bool) -> dict[str, str]:
    """The cause of each lost node.

    If ranks are silent, wait a moment: Docker reports a container's end later than its processes'.
    """
    deadline = time.monotonic() + (LOST_SECONDS if some_are_silent else 0)
    while not (lost := job.nodes.lost()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return lost


def describe_exit(status: int) -> str:
    """An exit status in words; negative is the signal that killed the process, as in subprocess."""
    return f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"


def signal_name(number: int) -> str:
    """The name of a signal; most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
