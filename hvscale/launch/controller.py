"""Starts a job, follows it, and ends it: nothing of it is left behind, and its folder is readable from the first second to the last."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType

from hvscale.errors import HvscaleError, RankFailedError, RequestError
from hvscale.host import describe_host
from hvscale.launch import devices as job_devices
from hvscale.launch import environment as job_environment
from hvscale.launch import flavours, horovod_build, in_effect, prefixes, processes, rank, transport
from hvscale.launch.job import Job
from hvscale.launch.output import RankOutput, last_lines
from hvscale.run_folder import RankEnd, RunFolder, RunRecord, default_run_path

POLL_SECONDS = 0.05
LOOK_AT_RANKS_SECONDS = 0.25
# After the first failure the launcher may end the other ranks itself, then it is asked to, then nothing is asked: 10 s are promised in all.
LAUNCHER_GRACE_SECONDS = 2.0
TERMINATE_GRACE_SECONDS = 4.0
LAST_WORDS_SECONDS = 1.0
VERSIONS_OF = ("hvscale", "horovod", "torch", "numpy")

Instrument = Callable[[RunFolder, str, Mapping[str, str]], dict[str, str]]
Show = Callable[[int, str], None]


class RunInterruptedError(HvscaleError):
    """The user ended the run by a signal; its folder is complete up to then. The exit status is 128 + signal, as shells have it."""

    def __init__(self, number: int, run: RunFolder) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}; what was recorded is in {run.path}")
        self.exit_status = 128 + number


def launch(
    np: int,
    command: list[str],
    *,
    mpi: str = "openmpi",
    env: list[str] | None = None,
    transport_name: str | None = None,
    devices: str = "all",
    run_path: Path | None = None,
    instrument: Instrument | None = None,
    show: Show | None = None,
    warn: Callable[[str], None] = lambda text: print(f"hvscale: warning: {text}", file=sys.stderr),
    watch: Callable[[RunFolder], None] | None = None,
) -> RunFolder:
    """Run `command` on `np` ranks and wait for its end.

    `instrument(run, flavour, environment)` gives variables for the command alone, on top of the job's `environment`; `show(rank, line)`
    gets the ranks' output; `watch(run)` is called about 20 times a second. Raises RequestError before anything is started,
    RankFailedError and RunInterruptedError afterwards.
    """
    if np < 1:
        raise RequestError(f"-np {np}: at least one rank is needed")
    if not command:
        raise RequestError("no command: write it behind --, for example: hvscale launch -np 2 -- python train.py")
    flavour = flavours.get(mpi)
    named = job_environment.named(env or [])
    passed = {**prefixes.programs_first(job_environment.clean(), flavour), **named}
    if shutil.which(command[0], path=passed.get("PATH", os.defpath)) is None:
        raise RequestError(f"{command[0]}: no such command, or not executable; check the name and PATH")
    library = transport.choose(flavour.find(passed), transport_name)
    devices_asked = job_devices.asked(devices, flavour, library)
    passed = flavour.adapt(passed, library)
    horovod_build.check(command, passed, flavour, library)

    run = RunFolder.create((run_path or default_run_path(command)).absolute())
    (run.path / "ranks").mkdir(exist_ok=True)
    host = describe_host()
    record = RunRecord(
        command=command,
        np=np,
        library=library,
        devices=devices_asked,
        rank_environment=instrument(run, mpi, passed) if instrument else {},
        settings_asked=job_environment.recordable(named),
        environment_passed=sorted(passed),
        versions=versions(),
        host=host,
        working_directory=str(Path.cwd()),
        started_at=datetime.now(UTC),
    )
    if np > host.cores:
        record.warnings.append(
            f"{np} ranks on {host.cores} cores: they share cores, so times say little about a machine with enough of them"
        )
    if dropped := job_environment.dropped_knobs(passed):
        record.warnings.append(
            f"not passed on to the ranks: {', '.join(dropped)}; add --env NAME for each that you want"
        )
    for text in record.warnings:
        warn(text)
    libraries = in_effect.Started(run, library, command, {**passed, **record.rank_environment})
    record.rank_environment |= in_effect.questions(libraries)
    answers = in_effect.Answers(libraries)
    run.write(record)

    job = Job(
        np,
        command,
        run.path,
        {**passed, processes.RUN_VARIABLE: str(run.path), "HVSCALE_NP": str(np)},
        record.rank_environment,
    )
    output = RankOutput(run, np, show or (lambda number, line: None))

    def note_settings(ended: bool = False) -> None:
        for told in answers.new(ended):
            record.settings_in_effect.append(told)
            for text in in_effect.warnings(told):
                record.warnings.append(text)
                warn(text)
            run.write(record)

    def each_time() -> None:
        output.poll()
        note_settings()
        if watch:
            watch(run)

    rank_program = [sys.executable, "-I", "-S", rank.__file__, str(run.path)]
    with (
        processes.adopting_orphans(),
        catching_signals() as caught,
        flavour.start(job, rank_program, library) as started,
    ):
        record.state = "running"
        run.write(record)
        try:
            by_itself = follow(run, started, caught, each_time)
        finally:
            statuses, left_behind = end(started, run.path)
            output.finish()
        note_settings(ended=True)
        record.ranks = read_ranks(run)
        close(record, statuses, 0 if by_itself else caught[0] if caught else 0)
        if by_itself and left_behind and not any(statuses):
            record.warnings.append(f"processes that the command left running were killed: {left_behind}")
            warn(record.warnings[-1])
        run.write(record)
    match record.state:
        case "interrupted":
            raise RunInterruptedError(caught[0], run)
        case "failed":
            raise rank_failure(record, run, statuses)
    return run


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONS_OF:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@contextmanager
def catching_signals() -> Iterator[list[int]]:
    """Within, SIGINT, SIGTERM and SIGHUP are noted in the list instead of ending this process."""
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(run: RunFolder, started: flavours.Processes, caught: list[int], each_time: Callable[[], None]) -> bool:
    """True when the job has ended by itself; False when the user wants it to end, or a rank has failed and the launcher had its grace."""
    look_at_ranks_at, give_up_at = 0.0, float("inf")
    while None in [process.poll() for process in started]:
        now = time.monotonic()
        if caught or now > give_up_at:
            return False
        each_time()
        if now > look_at_ranks_at and give_up_at == float("inf"):
            look_at_ranks_at = now + LOOK_AT_RANKS_SECONDS
            if any(process.returncode for process in started) or first_failed(read_ranks(run)):
                give_up_at = now + LAUNCHER_GRACE_SECONDS
        time.sleep(POLL_SECONDS)
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
    statuses = [process.wait() for process in started]
    processes.reap_orphans()
    return statuses, killed


def wait_for_last_words(run: Path) -> None:
    """Give ranks that a launcher has killed, as Hydra does after an abort, the moment in which their keepers write how they ended."""
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while time.monotonic() < deadline and processes.of_run(run):
        if all(entry.ended_at for entry in read_ranks(RunFolder(run))):
            return
        time.sleep(POLL_SECONDS)


def read_ranks(run: RunFolder) -> list[RankEnd]:
    """What the ranks have written about themselves so far, in order of rank."""
    return [
        RankEnd.model_validate(json.loads(path.read_text()))
        for path in sorted((run.path / "ranks").glob("rank-?????.json"))
    ]


def first_failed(ranks: list[RankEnd]) -> RankEnd | None:
    """The rank that ended badly before the others did, by its own host's clock.

    Where the launcher took all down at once, as Hydra does after an abort, it is the one that wrote last: it said that it aborts.
    """
    failed = [entry for entry in ranks if entry.signal or entry.exit_status]
    by_itself = [entry for entry in failed if not entry.taken_down]
    if failed and not by_itself:
        return max(failed, key=lambda entry: entry.wrote_at)
    return min(by_itself, key=lambda entry: entry.ended_at or float("inf"), default=None)


def close(record: RunRecord, statuses: list[int], interrupted_by: int) -> None:
    """Bring the record to its last state, from the ranks' ends, the launcher's exit statuses and the signal that ended it, if any."""
    record.ended_at = datetime.now(UTC)
    first = first_failed(record.ranks)
    if interrupted_by:
        record.state, record.exit_status = "interrupted", 128 + interrupted_by
    elif first or any(statuses):
        record.state, record.exit_status = "failed", RankFailedError.exit_status
        record.failed_rank = first.rank if first else None
    else:
        record.state, record.exit_status = "finished", 0


def rank_failure(record: RunRecord, run: RunFolder, statuses: list[int]) -> RankFailedError:
    """One line that says which rank failed and how, and the last lines it wrote."""
    first = first_failed(record.ranks)
    if first is None:
        who = record.library.launcher or f"rank {next(rank for rank, status in enumerate(statuses) if status)}"
        how, log = exit_words(next(status for status in statuses if status)), run.logs / "launcher.log"
    else:
        who, log = f"rank {first.rank} on {first.host}", run.log(first.rank)
        how = f"was killed by {first.signal}" if first.signal else exit_words(first.exit_status or 0)
    return RankFailedError(f"{who} {how}; its last lines, from {log}:", last_lines(log))


def exit_words(status: int) -> str:
    """A process's exit status in words; negative is the signal that killed it, as subprocess has it."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
