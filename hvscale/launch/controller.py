"""Starts a job, follows it, and ends it: nothing of it is left behind, and its folder is readable from the first second to the last."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType

from hvscale.core.errors import EXIT_TRY_AGAIN, HvscaleError, RequestError
from hvscale.core.host import describe_host
from hvscale.core.run_folder import NodeRecord, RunFolder, RunRecord, default_run_path
from hvscale.launch import effective_settings, flavours, placements
from hvscale.launch import environment as job_environment
from hvscale.launch.cleanup import shared_memory
from hvscale.launch.job import Job
from hvscale.launch.mpi import devices as job_devices
from hvscale.launch.mpi import horovod_build, prefixes, reported_library
from hvscale.launch.nodes.nodes import Nodes, lost_mark
from hvscale.launch.options import NO_HOOKS, LaunchHooks, LaunchOptions
from hvscale.launch.placements import _slurm_job
from hvscale.launch.rank_side import rank
from hvscale.launch.supervision import init_marker, limits, processes, waiting
from hvscale.launch.supervision.first_rank import FirstRank
from hvscale.launch.supervision.init_marker import StartWatch
from hvscale.launch.supervision.interrupts import InterruptedWaitError, catching_signals, ending_waits
from hvscale.launch.supervision.outcome import (
    Failure,
    find_failure,
    first_failed,
    killed_launcher,
    late_start,
    lingering,
    read_ranks,
)
from hvscale.launch.supervision.output import RankOutput

POLL_SECONDS = 0.05
SHORT_JOB_SECONDS = 1.0  # up to here its end is looked for more often
LOOK_AT_RANKS_SECONDS = 0.25
# After the first failure the launcher may end the other ranks itself, then it is asked to, then nothing is asked: 10 s are promised in all.
LAUNCHER_GRACE_SECONDS = 2.0
TERMINATE_GRACE_SECONDS = 4.0
LAST_WORDS_SECONDS = 1.0
VERSIONS_OF = ("hvscale", "horovod", "torch", "numpy")


class RunInterruptedError(HvscaleError):
    """The user ended the run by a signal; its folder is complete up to then. The exit status is 128 + signal, as shells have it."""

    def __init__(self, number: int, run: RunFolder, problem: str = "") -> None:
        ended = f"ended by {signal.Signals(number).name}; what was recorded is in {run.path}"
        super().__init__(f"{ended}; {problem}" if problem else ended)
        self.exit_status = 128 + number


def launch(command: list[str], options: LaunchOptions, hooks: LaunchHooks = NO_HOOKS) -> RunFolder:
    """Run `command` as `options` say, by default on this machine, and wait for its end.

    Raises RequestError before a rank is started, RankFailedError and RunInterruptedError afterwards.
    """
    if not command:
        raise RequestError("no command: write it behind --, for example: hvscale launch -np 2 -- python train.py")
    limits.check()
    flavour = flavours.get(options.mpi)
    passed = passed_environment(command, options, flavour)
    if hooks.show is not None:
        hooks = replace(hooks, show=flavour.without_report(passed, hooks.show))
    if options.placement.submit and not _slurm_job.is_inside_an_allocation():
        return submit_and_follow(command, options, hooks)
    place = placements.get(options.placement, options.np)
    library = flavours.choose_transport(flavour, flavour.find(passed), options.transport, passed)
    devices = job_devices.asked(options.devices, flavour, library)
    passed = flavour.adapt(passed, library)
    horovod_build.check(command, passed, flavour, library)

    run = RunFolder.create((options.run or default_run_path(command)).absolute())
    record = RunRecord(
        command=command,
        np=options.np,
        launch=options.recorded().model_dump(mode="json"),
        placement=place.name,
        library=library,
        devices=devices,
        environment_passed=sorted(passed),
        versions=versions(),
        host=describe_host(),
        working_directory=str(Path.cwd()),
        started_at=datetime.now(UTC),
    )
    instrument(run, record, passed, options, flavour, hooks)
    launched = effective_settings.LaunchedJob(run, library, command, {**passed, **record.rank_environment})
    settings_reports = effective_settings.Reports(launched, flavour.settings_reader)
    record.rank_environment |= settings_reports.variables()
    request = placements.PlacementRequest(options.np, command, run.path, passed, library, options.placement)
    run.begin(record)
    with run.at_work(record), processes.adopting_orphans(), catching_signals() as caught, ExitStack() as stack:
        stack.callback(note_problems, record, run, request, hooks.warn)
        try:
            nodes = prepare(place, request, stack, caught)
        except (RequestError, InterruptedWaitError) as error:
            ended_before_the_start(record, run, caught)
            if caught:
                raise RunInterruptedError(caught[0], run) from error
            raise
        describe_nodes(record, nodes)
        record.warnings += forewarnings(record, nodes, passed)
        for text in record.warnings:
            hooks.warn(text)
        variables = {name: value for name, value in passed.items() if name not in nodes.unwanted}
        job = Job(
            options.np,
            command,
            run.path,
            {**variables, processes.RUN_VARIABLE: str(run.path), processes.NP_VARIABLE: str(options.np)},
            nodes,
            record.rank_environment,
        )
        start = StartWatch(run.path, options.np, options.start_timeout)
        failure = run_job(job, flavour, record, run, start, settings_reports, caught, hooks)
    match record.state:
        case "interrupted" if caught:
            raise RunInterruptedError(caught[0], run)
        case "failed" | "interrupted" if failure is not None:
            raise failure.error(run)
    return run


def passed_environment(command: list[str], options: LaunchOptions, flavour: flavours.Flavour) -> dict[str, str]:
    """What the job gets of this shell's environment. Raises RequestError where it does not find the command."""
    passed = {**prefixes.programs_first(job_environment.clean(), flavour), **job_environment.named(options.env)}
    if shutil.which(command[0], path=passed.get("PATH", os.defpath)) is None:
        raise RequestError(f"{command[0]}: no such command, or not executable; check the name and PATH")
    return passed


def instrument(
    run: RunFolder,
    record: RunRecord,
    passed: Mapping[str, str],
    options: LaunchOptions,
    flavour: flavours.Flavour,
    hooks: LaunchHooks,
) -> None:
    """Put what is preloaded into the ranks into the record's `rank_environment`."""
    for one in (hooks.collectives if options.collectives is not None else None, hooks.instrument):
        if one is not None:
            environment = {**passed, processes.NP_VARIABLE: str(options.np), **record.rank_environment}
            record.rank_environment |= one(run, record, environment)
    if options.start_timeout is not None or flavour.has_mpi:
        try:
            record.rank_environment |= init_marker.environment(run.path, {**passed, **record.rank_environment})
        except RequestError as error:
            if options.start_timeout is not None:
                raise
            record.warnings.append(f"the ranks cannot report the MPI library that they run on: {error}")


def submit_and_follow(command: list[str], options: LaunchOptions, hooks: LaunchHooks) -> RunFolder:
    """Have Slurm run the job, and show what its ranks write. Raises what a launch here would raise."""
    run = RunFolder((options.run or default_run_path(command)).absolute())
    script = _slurm_job.job_script("profile" if hooks.instrument else "launch", command, options, run.path)
    _slurm_job.prepare_folder(run)
    with catching_signals() as caught:
        try:
            number = _slurm_job.submit(script, run)
        except InterruptedWaitError as error:
            unsure = "`squeue --me` says whether Slurm has taken the job"
            raise RunInterruptedError(caught[0], run, unsure) from error
        try:
            _slurm_job.follow(
                number,
                run,
                options.np,
                hooks.show or (lambda rank, line: None),
                lambda: hooks.watch(run) if hooks.watch else None,
                lambda: bool(caught),
            )
        except RequestError as error:
            if caught:
                raise RunInterruptedError(caught[0], run, str(error)) from error
            raise
    if caught:
        raise RunInterruptedError(caught[0], run)
    _slurm_job.outcome(number, run)
    return run


def run_job(
    job: Job,
    flavour: flavours.Flavour,
    record: RunRecord,
    run: RunFolder,
    start: StartWatch,
    settings_reports: effective_settings.Reports,
    caught: list[int],
    hooks: LaunchHooks,
) -> Failure | None:
    """Start the job, follow it and end it; brings the record to its last state. Gives what went wrong, None when nothing did."""
    watch, warn = hooks.watch, hooks.warn
    output = RankOutput(run, job.np, hooks.show or (lambda number, line: None))

    def note_settings(ended: bool = False) -> None:
        for reported in settings_reports.new(ended):
            record.settings_in_effect.append(reported)
            for text in effective_settings.warnings(reported):
                record.warnings.append(text)
                warn(text)
            run.write(record)

    reports = reported_library.Reports(run.path, job.np, flavour.name)

    def note_libraries(ended: bool = False) -> None:
        found = reports.new(ended) if flavour.has_mpi else None
        if found is None:
            return
        record.libraries_reported = found  # written with the next change
        text = record.library_difference
        if text and text not in record.warnings:
            record.warnings.append(text)
            warn(text)
            run.write(record)

    stopped = False

    def each_time() -> bool:
        nonlocal stopped
        output.poll()
        note_settings()
        note_libraries()
        # A failed rank explains more than the watcher can.
        stopped = watch is not None and watch(run) is True and first_failed(read_ranks(run)) is None
        return stopped

    try:
        attempt = start_until_a_rank_begins(job, flavour, record, run, start, caught, each_time, warn)
    finally:
        output.finish()
        if job.nodes.on_this_machine:  # killed ranks leave it behind
            temporary = Path(job.environment.get("TMPDIR") or tempfile.gettempdir())
            shared_memory.remove_unused(temporary, record.started_at.timestamp())
    note_settings(ended=True)
    note_libraries(ended=True)
    record.ranks = read_ranks(run)
    failure = None
    if not caught and not stopped:
        failure = (
            attempt.no_rank
            or late_start(job, start, attempt.late)
            or (lingering(job, record.library) if attempt.lingers else None)
            or killed_launcher(record.library, run, attempt.killed_by)
            or find_failure(job, record.library, record.ranks, attempt.statuses)
        )
    close(record, failure, 0 if attempt.by_itself else caught[0] if caught else 0, stopped)
    # In other nodes it may be an agent that has not quite ended yet.
    if attempt.by_itself and attempt.left_behind and not any(attempt.statuses) and job.nodes.are_here:
        record.warnings.append(f"processes that the command left running were killed: {attempt.left_behind}")
        warn(record.warnings[-1])
    run.write(record)
    return failure


@dataclass
class Attempt:
    """One start of a job, as it went: what `follow` saw, and the launchers' exit statuses.

    `by_itself`: it ended unasked. `late`: ranks that were not through MPI_Init in time. `hung`: no rank began in time.
    `rank_failed`: a rank failed while all launchers ran. `lingers`: a launcher ran on long after all ranks had ended.
    `left_behind`: processes that had to be killed. `no_rank`: the failure, when no rank began.
    """

    by_itself: bool = False
    late: list[int] = field(default_factory=list)
    hung: bool = False
    rank_failed: bool = False
    all_ended_at: float | None = None
    lingers: bool = False
    statuses: list[int] = field(default_factory=list)
    left_behind: int = 0
    no_rank: Failure | None = None

    def note_all_ended(self, all_ended: bool) -> None:
        """Its launchers may take a while longer than its ranks, but not for ever."""
        if all_ended and self.all_ended_at is None:
            self.all_ended_at = time.monotonic()
        self.lingers = self.all_ended_at is not None and time.monotonic() > self.all_ended_at + limits.answer_seconds()

    @property
    def killed_by(self) -> int:
        """The signal that killed a launcher from outside; 0 when none did."""
        unasked = self.by_itself and not self.rank_failed
        return next((-status for status in self.statuses if status < 0 and unasked), 0)


def start_until_a_rank_begins(
    job: Job,
    flavour: flavours.Flavour,
    record: RunRecord,
    run: RunFolder,
    start: StartWatch,
    caught: list[int],
    each_time: Callable[[], bool],
    warn: Callable[[str], None],
) -> Attempt:
    """Start the job, follow it and end it. When its launcher started no rank for a reason that passes, once more."""
    attempt, first = start_once(job, flavour, record, run, start, caught, each_time)
    reason = first.failed(record.library, attempt.hung, any(attempt.statuses))
    if not reason or caught:
        return attempt
    record.warnings.append(f"{reason}; started once more, the first start's log is {first.keep_log()}")
    warn(record.warnings[-1])
    attempt, first = start_once(job, flavour, record, run, start, caught, each_time)
    if reason := first.failed(record.library, attempt.hung, any(attempt.statuses)):
        attempt.no_rank = first.failure(record.library, reason)
    return attempt


def start_once(
    job: Job,
    flavour: flavours.Flavour,
    record: RunRecord,
    run: RunFolder,
    start: StartWatch,
    caught: list[int],
    each_time: Callable[[], bool],
) -> tuple[Attempt, FirstRank]:
    """Start the job, follow it and end it."""
    ranks, local_ranks = zip(*((one.rank, one.local_rank) for one in flavour.rank_variables), strict=True)
    rank_program = [sys.executable, "-I", "-S", rank.__file__, str(run.path), ",".join(ranks), ",".join(local_ranks)]
    attempt, first = Attempt(), FirstRank(job)
    with flavour.start(job, rank_program, record.library) as started:
        record.state = "running"
        run.write(record)
        try:
            with suppress(InterruptedWaitError), ending_waits():
                # Asked while the ranks start, because it takes as long as a start; written with the next change.
                built_with = record.library.transports or flavour.transports(record.library, job.environment)
                record.library = record.library.model_copy(update={"transports": built_with})
            with passing_on_usr1(started):
                follow(job, run, started, start, first, attempt, caught, each_time)
        finally:
            attempt.statuses, attempt.left_behind = end(started, run.path)
    return attempt, first


def prepare(
    place: placements.Placement, request: placements.PlacementRequest, stack: ExitStack, caught: list[int]
) -> Nodes:
    """Make the nodes, until `stack` is left; a signal ends the wait for them with InterruptedWaitError."""
    with ending_waits():
        if caught:
            raise InterruptedWaitError
        return stack.enter_context(place.prepare(request))


def note_problems(
    record: RunRecord, run: RunFolder, request: placements.PlacementRequest, warn: Callable[[str], None]
) -> None:
    """Say what the placement could not remove."""
    for text in request.problems:
        warn(text)
    if request.problems:
        record.warnings += request.problems
        run.write(record)


def ended_before_the_start(record: RunRecord, run: RunFolder, caught: list[int]) -> None:
    """The nodes could not be made, or the user did not wait for them."""
    record.ended_at = datetime.now(UTC)
    record.state = "interrupted" if caught else "failed"
    record.exit_status = 128 + caught[0] if caught else RequestError.exit_status
    run.write(record)


def describe_nodes(record: RunRecord, nodes: Nodes) -> None:
    record.placement_settings = dict(nodes.settings)
    record.nodes = [
        NodeRecord(name=node.name, address=node.address, interface=node.interface, ranks=nodes.ranks_of(node.name))
        for node in nodes.nodes
    ]


def forewarnings(record: RunRecord, nodes: Nodes, passed: Mapping[str, str]) -> list[str]:
    """What the user should know before the job starts."""
    warnings = []
    if nodes.on_this_machine and record.np > record.host.cores:
        warnings.append(
            f"{record.np} ranks on {record.host.cores} cores: "
            "they share cores, so times say little about a machine with enough of them"
        )
    if dropped := job_environment.dropped_knobs(passed):
        warnings.append(f"not passed on to the ranks: {', '.join(dropped)}; add --env NAME for each that you want")
    return warnings


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONS_OF:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@contextmanager
def passing_on_usr1(started: flavours.Processes) -> Iterator[None]:
    """Within, SIGUSR1 goes to the launchers, which hand it to the ranks: schedulers send it to ask a job to save and stop."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in started:
            process.send_signal(number)

    before = signal.signal(signal.SIGUSR1, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def follow(
    job: Job,
    run: RunFolder,
    started: flavours.Processes,
    start: StartWatch,
    first: FirstRank,
    attempt: Attempt,
    caught: list[int],
    each_time: Callable[[], bool],
) -> None:
    """Return when the job has ended by itself, or is to be ended: the user or `each_time` wants it, a rank has failed and the launcher had its
    grace, no rank began in time, or the start takes too long. `attempt` says which."""
    began, look_at_ranks_at, give_up_at = time.monotonic(), 0.0, float("inf")
    while is_running(started):
        now = time.monotonic()
        if caught or now > give_up_at or each_time():
            return
        if now > look_at_ranks_at and give_up_at == float("inf"):
            look_at_ranks_at = now + LOOK_AT_RANKS_SECONDS
            if something_failed(job, run, started, attempt):
                give_up_at = now + LAUNCHER_GRACE_SECONDS
            elif first.has_begun():
                start.begin()
                ranks = read_ranks(run)
                attempt.late += start.late({entry.rank for entry in ranks if entry.exit_status is not None})
                attempt.note_all_ended(len([entry for entry in ranks if entry.ended_at]) == start.np)
            else:
                attempt.hung = first.is_late()
            if attempt.late or attempt.hung or attempt.lingers:
                return
        time.sleep(POLL_SECONDS if now - began > SHORT_JOB_SECONDS else POLL_SECONDS / 5)
    attempt.by_itself = True


def is_running(started: flavours.Processes) -> bool:
    return None in [process.poll() for process in started]


def something_failed(job: Job, run: RunFolder, started: flavours.Processes, attempt: Attempt) -> bool:
    """Whether a launcher ended badly, a node was lost, or a rank failed; notes in `attempt` when a rank did while all launchers ran."""
    if any(process.returncode for process in started):
        return True
    if any(lost_mark(run.path, node.name).exists() for node in job.nodes.nodes if node.through_shell):
        return True
    if first_failed(read_ranks(run)) is None:
        return False
    # Ranks fail, too, when their launcher has been killed.
    attempt.rank_failed = all(process.poll() is None for process in started)
    return True


def end(started: flavours.Processes, run: Path) -> tuple[list[int], int]:
    """Ask what still runs to end, then end it. Gives the exit statuses of `started`, and how many other processes had to be killed."""
    deadline = time.monotonic() + TERMINATE_GRACE_SECONDS
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    wait_for_last_words(run)
    killed = processes.kill_all(run)
    end_agents(started)
    statuses = [process.wait() for process in started]
    processes.reap_orphans()
    return statuses, killed


def end_agents(started: flavours.Processes) -> None:
    """Let what still runs kill its program elsewhere and end with it; one that goes through what does not answer any more is killed itself."""
    running = [process for process in started if process.poll() is None]
    for process in running:
        process.kill()
    deadline = time.monotonic() + processes.KILL_SECONDS
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        waiting.end_session(process)


def wait_for_last_words(run: Path) -> None:
    """Give ranks that a launcher has killed, as Hydra does after an abort, the moment in which their keepers write how they ended."""
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while time.monotonic() < deadline and processes.of_run(run):
        if all(entry.ended_at for entry in read_ranks(RunFolder(run))):
            return
        time.sleep(POLL_SECONDS)


def close(record: RunRecord, failure: Failure | None, interrupted_by: int, stopped: bool) -> None:
    """Bring the record to its last state, from what went wrong and the signal that ended it, if any; `stopped`: who watched had seen enough."""
    record.ended_at = datetime.now(UTC)
    if interrupted_by:
        record.state, record.exit_status = "interrupted", 128 + interrupted_by
    elif stopped:
        record.state, record.exit_status = "stopped", 0
    elif failure is not None:
        record.exit_status = failure.exit_status
        record.state = "interrupted" if failure.exit_status == EXIT_TRY_AGAIN else "failed"
        record.failed_rank = failure.rank
    else:
        record.state, record.exit_status = "finished", 0
