"""Starts a job's launchers, follows its ranks and ends the job, leaving no process behind."""

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from hvscale.core.errors import EXIT_TRY_AGAIN
from hvscale.core.run_folder import RankEnd, RunFolder, RunRecord
from hvscale.launch import effective_settings, flavours
from hvscale.launch.cleanup import shared_memory
from hvscale.launch.job import Job, RemoteProcess, lost_marker
from hvscale.launch.mpi import reported_library
from hvscale.launch.options import LaunchHooks
from hvscale.launch.supervision import processes, programs, rank_order
from hvscale.launch.supervision.first_rank import FirstRankDeadline
from hvscale.launch.supervision.init_marker import InitDeadline
from hvscale.launch.supervision.interrupts import InterruptedWaitError, interruptible
from hvscale.launch.supervision.outcome import (
    Failure,
    RankRecords,
    find_failure,
    first_failed,
    hanging_launcher,
    init_timeout,
    launcher_killed,
)
from hvscale.launch.supervision.output import RankOutput

# How often to look for output, and at the ranks' records. Each look asks the file system about
# every rank, so large jobs get longer periods: 512 ranks 0.5 and 2 s.
POLL_SECONDS, POLL_SECONDS_PER_RANK = 0.05, 0.001
CHECK_RANKS_SECONDS, CHECK_SECONDS_PER_RANK = 0.25, 0.004
# After the first failure: time for the launcher to end the other ranks itself, then to end after
# SIGTERM, before SIGKILL. The whole takes at most 10 s.
LAUNCHER_GRACE_SECONDS = 2.0
TERMINATE_GRACE_SECONDS = 4.0
RANK_RECORDS_SECONDS = 1.0


@dataclass
class Attempt:
    """One start of a job.

    `ended_on_its_own`: hvscale did not end it. `late_ranks`: ranks that missed the MPI_Init
    deadline. `first_rank_late`: no rank started in time. `rank_failed`: a rank failed while all
    launchers ran. `launcher_hangs`: a launcher ran on long after all ranks had ended. `statuses`:
    the launchers' exit statuses. `leftover_processes`: processes that had to be killed.
    `start_failure`: the failure if no rank started.
    """

    ended_on_its_own: bool = False
    late_ranks: list[int] = field(default_factory=list)
    first_rank_late: bool = False
    rank_failed: bool = False
    all_ended_at: float | None = None
    launcher_hangs: bool = False
    statuses: list[int] = field(default_factory=list)
    leftover_processes: int = 0
    start_failure: Failure | None = None

    def note_ranks_ended(self, all_ended: bool) -> None:
        """Launchers may end a while after their ranks, but not any time later."""
        if all_ended and self.all_ended_at is None:
            self.all_ended_at = time.monotonic()
        self.launcher_hangs = (
            self.all_ended_at is not None and time.monotonic() > self.all_ended_at + programs.answer_seconds()
        )

    @property
    def killed_by(self) -> int:
        """The signal that killed a launcher from outside, or 0."""
        unasked = self.ended_on_its_own and not self.rank_failed
        return next((-status for status in self.statuses if status < 0 and unasked), 0)


class JobSupervisor:
    """One job, from its first process to its last. It keeps the record and run.json up to date.

    `caught`: the signals that this process has received.
    """

    def __init__(
        self,
        job: Job,
        flavour: flavours.Flavour,
        record: RunRecord,
        run: RunFolder,
        init_deadline: InitDeadline,
        settings_reports: effective_settings.SettingsReports,
        built_with: Future[list[str]],
        caught: list[int],
        hooks: LaunchHooks,
    ) -> None:
        self.job, self.flavour, self.record, self.run = job, flavour, record, run
        self.init_deadline, self.caught, self.hooks = init_deadline, caught, hooks
        self.ranks = RankRecords(run)
        self.output = RankOutput(run, job.np, hooks.show or (lambda number, line: None))
        self.settings_reports, self.built_with = settings_reports, built_with
        self.library_reports = reported_library.LibraryReports(run.path, job.np, flavour.name)
        self.stopped = False  # by the watch hook

    def supervise(self) -> Failure | None:
        """Start the job, follow it, end it and close the record. Returns the failure, if any."""
        try:
            attempt = self.start_with_retry()
        finally:
            self.output.finish()
            if self.job.nodes.on_this_machine:  # killed ranks leave segments behind
                temporary = Path(self.job.environment.get("TMPDIR") or tempfile.gettempdir())
                shared_memory.remove_unused(temporary, self.record.started_at.timestamp())
        self.note_settings(ended=True)
        self.note_libraries(ended=True)
        self.record.ranks = self.ranks.read()
        failure = None if self.caught or self.stopped else self.find_failure(attempt)
        self.close(failure, 0 if attempt.ended_on_its_own else self.caught[0] if self.caught else 0)
        # In other nodes it may be an agent that is about to end.
        if (
            attempt.ended_on_its_own
            and attempt.leftover_processes
            and not any(attempt.statuses)
            and self.job.nodes.without_agents
        ):
            self.warn(f"processes that the command left running, now killed: {attempt.leftover_processes}")
        self.run.write(self.record)
        return failure

    def start_with_retry(self) -> Attempt:
        """Run the job; retry once if its launcher started no rank for a transient reason."""
        attempt, first = self.start_once()
        reason = first.retry_reason(self.record.library, attempt.first_rank_late, any(attempt.statuses))
        if not reason or self.caught:
            return attempt
        self.warn(f"{reason}; retrying, the log of the first start is {first.keep_log()}")
        attempt, first = self.start_once()
        if reason := first.retry_reason(self.record.library, attempt.first_rank_late, any(attempt.statuses)):
            attempt.start_failure = first.failure(self.record.library, reason)
        return attempt

    def start_once(self) -> tuple[Attempt, FirstRankDeadline]:
        """Start the job, follow it and end it."""
        job, record = self.job, self.record
        rank_program = rank_order.rank_program(self.run, self.flavour)
        rank_order.write_order(self.run, record)
        attempt, first = Attempt(), FirstRankDeadline(job)
        with self.flavour.start(job, rank_program, record.library) as started:
            record.state = "running"
            self.run.write(record)
            try:
                with suppress(InterruptedWaitError), interruptible():
                    # Written with the next change.
                    record.library = record.library.model_copy(update={"transports": self.built_with.result()})
                with forward_usr1(started):
                    self.follow(started, first, attempt)
            finally:
                attempt.statuses, attempt.leftover_processes = terminate(started, self.run.path)
        return attempt, first

    def follow(self, started: flavours.Processes, first: FirstRankDeadline, attempt: Attempt) -> None:
        """Return when the job has ended, or when it must be ended.

        The latter holds if the user or the watch hook stops it, a rank has failed and the launcher
        had its grace period, no rank started in time, or MPI_Init takes too long. `attempt` records
        which.
        """
        check_ranks_at, give_up_at = 0.0, float("inf")
        poll_seconds = max(POLL_SECONDS, POLL_SECONDS_PER_RANK * self.job.np)
        check_ranks_seconds = max(CHECK_RANKS_SECONDS, CHECK_SECONDS_PER_RANK * self.job.np)
        while is_running(started):
            now = time.monotonic()
            if self.caught or now > give_up_at or self.should_stop():
                return
            if now > check_ranks_at and give_up_at == float("inf"):
                check_ranks_at = now + check_ranks_seconds
                if has_failure(self.job, self.ranks.read(), started, attempt):
                    give_up_at = now + LAUNCHER_GRACE_SECONDS
                else:
                    self.check_ranks(first, attempt)
                if attempt.late_ranks or attempt.first_rank_late or attempt.launcher_hangs:
                    return
            wait_for_launcher_end(started, poll_seconds)
        attempt.ended_on_its_own = True

    def check_ranks(self, first: FirstRankDeadline, attempt: Attempt) -> None:
        """Note whether the ranks start, finish MPI_Init and end in time."""
        if not first.has_begun():
            attempt.first_rank_late = first.is_late()
            return
        self.init_deadline.start_clock()
        ranks = self.ranks.read()
        attempt.late_ranks += self.init_deadline.late_ranks(
            {entry.rank for entry in ranks if entry.exit_status is not None}
        )
        attempt.note_ranks_ended(len([entry for entry in ranks if entry.ended_at]) == self.init_deadline.np)

    def should_stop(self) -> bool:
        """Show and record what is new. Returns whether the watch hook stops the job."""
        self.output.poll()
        self.note_settings()
        self.note_libraries()
        watch = self.hooks.watch
        # A failed rank explains more than the watch hook can.
        self.stopped = watch is not None and watch(self.run) is True and first_failed(self.ranks.read()) is None
        return self.stopped

    def note_settings(self, ended: bool = False) -> None:
        """Record the settings that the libraries report."""
        for reported in self.settings_reports.new(ended):
            self.record.settings_in_effect.append(reported)
            for text in effective_settings.warnings(reported):
                self.warn(text)
            self.run.write(self.record)

    def note_libraries(self, ended: bool = False) -> None:
        """Record the MPI libraries that the ranks report."""
        found = self.library_reports.new(ended) if self.flavour.has_mpi else None
        if found is None:
            return
        self.record.libraries_reported = found  # written with the next change
        text = self.record.library_difference
        if text and text not in self.record.warnings:
            self.warn(text)
            self.run.write(self.record)

    def find_failure(self, attempt: Attempt) -> Failure | None:
        library = self.record.library
        return (
            attempt.start_failure
            or init_timeout(self.job, self.init_deadline, attempt.late_ranks)
            or (hanging_launcher(self.job, library) if attempt.launcher_hangs else None)
            or launcher_killed(library, self.run, attempt.killed_by)
            or find_failure(self.job, library, self.record.ranks, attempt.statuses)
        )

    def close(self, failure: Failure | None, interrupted_by: int) -> None:
        """Bring the record to its last state.

        `interrupted_by`: the signal that interrupted the job, or 0.
        """
        record = self.record
        record.ended_at = datetime.now(UTC)
        if interrupted_by:
            record.state, record.exit_status = "interrupted", 128 + interrupted_by
        elif self.stopped:
            record.state, record.exit_status = "stopped", 0
        elif failure is not None:
            record.exit_status = failure.exit_status
            record.state = "interrupted" if failure.exit_status == EXIT_TRY_AGAIN else "failed"
            record.failed_rank = failure.rank
        else:
            record.state, record.exit_status = "finished", 0

    def warn(self, text: str) -> None:
        self.record.warnings.append(text)
        self.hooks.warn(text)


@contextmanager
def forward_usr1(started: flavours.Processes) -> Iterator[None]:
    """Context: SIGUSR1 goes to the launchers, which pass it to the ranks.

    Schedulers send it to ask a job to save and stop.
    """

    def forward(number: int, frame: FrameType | None) -> None:
        for process in started:
            process.send_signal(number)

    before = signal.signal(signal.SIGUSR1, forward)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def is_running(started: flavours.Processes) -> bool:
    return None in [process.poll() for process in started]


def wait_for_launcher_end(started: flavours.Processes, seconds: float) -> None:
    """Wait until a running launcher ends, at most `seconds`."""
    running: list[int] = []
    ends = select.poll()  # select.select does not support descriptors above 1023
    try:
        running += (os.pidfd_open(process.pid) for process in started if process.returncode is None)
        for descriptor in running:
            ends.register(descriptor, select.POLLIN)
        ends.poll(seconds * 1000)
    except OSError:  # a kernel before 5.3, or no descriptor is left
        time.sleep(seconds / 5)
    finally:
        for descriptor in running:
            os.close(descriptor)


def has_failure(job: Job, ranks: list[RankEnd], started: flavours.Processes, attempt: Attempt) -> bool:
    """Whether a launcher failed, a node was lost or a rank failed.

    Notes in `attempt` a rank that failed while all launchers ran.
    """
    if any(process.returncode for process in started):
        return True
    if any(lost_marker(job.run, node.name).exists() for node in job.nodes.nodes if node.through_shell):
        return True
    if first_failed(ranks) is None:
        return False
    # Ranks also fail when their launcher has been killed.
    attempt.rank_failed = all(process.poll() is None for process in started)
    return True


def terminate(started: flavours.Processes, run: Path) -> tuple[list[int], int]:
    """Send SIGTERM to what still runs, then kill it.

    Returns the exit statuses of `started`, and how many other processes had to be killed.
    """
    deadline = time.monotonic() + TERMINATE_GRACE_SECONDS
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    wait_for_rank_records(run, deadline + RANK_RECORDS_SECONDS)
    # Agents kill their remote programs before they end.
    own = [process.pid for process in started if not isinstance(process, RemoteProcess)]
    killed = processes.kill_all(run, own)
    terminate_agents(started)
    statuses = [process.wait() for process in started]
    processes.reap_orphans()
    return statuses, killed


def terminate_agents(started: flavours.Processes) -> None:
    """Let agents kill their remote programs and end; kill an agent that does not end."""
    running = [process for process in started if process.poll() is None]
    for process in running:
        process.kill()
    deadline = time.monotonic() + processes.KILL_SECONDS
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        programs.end_session(process)


def wait_for_rank_records(run: Path, deadline: float) -> None:
    """Wait until the supervisors of killed ranks have recorded how they ended.

    `deadline`: of time.monotonic(). A launcher may end seconds before them on a busy machine.
    """
    ranks = RankRecords(RunFolder(run))
    while time.monotonic() < deadline and processes.of_run(run):
        if all(entry.ended_at for entry in ranks.read()):
            return
        time.sleep(POLL_SECONDS)
