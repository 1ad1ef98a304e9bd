"""Runs a launch as a Slurm job: writes its script, submits it and follows it."""

import itertools
import os
import re
import shlex
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from hvscale.core.errors import RankFailedError, RequestError
from hvscale.core.folder_lock import FolderLock, remove_empty
from hvscale.core.run_folder import RunFolder, cannot_write, default_run_path
from hvscale.launch.environment import env_variables, has_public_value
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.supervision import interrupts, programs
from hvscale.launch.supervision.output import RankOutput, last_lines
from hvscale.launch.supervision.programs import call, require

SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ARRAY_OPTION = re.compile(r"--ar(r(ay?)?)?([= ].*)?|-a.*")  # of sbatch, which takes abbreviations
ARRAY_TASK = "SLURM_ARRAY_TASK_ID"
POLL_SECONDS = 0.5
CANCEL_SECONDS = 60
SUBMIT_SECONDS = 5  # after Ctrl-C, for sbatch to name the job that it has submitted, which is then cancelled
# What squeue prints if slurmctld does not run or does not answer; jobs continue without it.
NO_CONTROLLER = ("Unable to contact slurm controller", "Socket timed out")
NO_ANSWER = "no answer"
# The states of a job that has no launcher yet, and of one that has not ended.
NOT_STARTED = ("PENDING", "CONFIGURING", "REQUEUED")
UNFINISHED = (*NOT_STARTED, "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", NO_ANSWER)


def is_array(options: PlacementOptions) -> bool:
    """Whether sbatch is to start an array of jobs."""
    return any(ARRAY_OPTION.fullmatch(option) for option in options.sbatch_option or ())


def script_text(
    np: int,
    nodes: int | None,
    words: list[str],
    run: Path,
    options: list[str],
    variables: Mapping[str, str],
    array: bool,
) -> str:
    """A job script that calls this hvscale with `words` and `variables` inside its allocation.

    `words` lack the run folder, which each task of an array has for itself. Raises RequestError for
    a folder or an option with a line break.
    """
    logs = str(run / "logs").replace("%", "%%")  # sbatch replaces %j and the like
    log, folder = f"{logs}/slurm.log", shlex.quote(str(run))
    if array:
        log, folder = f"{logs}/slurm-%a.log", f'{shlex.quote(str(run / "task"))}-"${ARRAY_TASK}"'
    sbatch_options = [f"--job-name={run.name}", f"--ntasks={np}", *([f"--nodes={nodes}"] if nodes else []), *options]
    sbatch_options += [f"--output={log}", "--open-mode=append"]
    if broken := [option for option in sbatch_options if "\n" in option]:
        raise RequestError(f"{broken[0]!r} has a line break, and sbatch reads each option from one line")
    lines = [f"#SBATCH {shlex.quote(option)}" for option in sbatch_options]
    program = shlex.join([str(Path(sys.prefix) / "bin" / "hvscale"), words[0]])
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    call = f"exec {program} --run {folder} {shlex.join(words[1:])}"
    return "\n".join(["#!/bin/sh", *lines, *exports, f"cd {shlex.quote(str(Path.cwd()))} || exit", call, ""])


def job_script(verb: str, command: list[str], options: LaunchOptions, run: Path) -> str:
    """The script of a job that runs `hvscale VERB` with these options.

    Also written to the file of --sbatch, if given.
    """
    env, hidden = split_secrets(options.env)
    inside = options.replace(env=env, run=None, placement=PlacementOptions(placement="slurm"))
    words = [verb, *itertools.chain.from_iterable(inside.command_line()), "--", *command]
    placement = options.placement
    more = list(placement.sbatch_option or ())
    text = script_text(options.np, placement.nodes, words, run, more, hidden, is_array(placement))
    if placement.sbatch is not None:
        write_script(placement.sbatch, text, private=bool(hidden))
    return text


def split_secrets(requests: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The values of `--env` for a command line, and the hidden variables for the environment.

    Every user of a node can read command lines.
    """
    written = env_variables([request for request in requests if "=" in request])
    hidden = {name: value for name, value in written.items() if not has_public_value(name)}
    if odd := [name for name in hidden if not SHELL_NAME.fullmatch(name)]:
        raise RequestError(
            f"--env {odd[0]}=...: a job script cannot set a variable of that name; write --env {odd[0]}, and set it for sbatch"
        )
    shown = (name if (name := request.partition("=")[0]) in hidden else request for request in requests)
    return tuple(shown), hidden


def write_job_script(verb: str, command: list[str], options: LaunchOptions) -> str:
    """Write the script; return a line for the user.

    The script contains the run folder, so it serves one job, or one array of jobs.
    """
    run = RunFolder((options.run or default_run_path(command)).absolute())
    if is_array(options.placement):
        prepare_array_folder(run)
        folder = f"the run folders of its tasks are {run.path}/task-ID"
    else:
        prepare_folder(run)
        folder = f"its run folder is {run.path}"
    try:
        job_script(verb, command, options, run.path)
    except RequestError:
        remove_unused(run)
        raise
    path = options.placement.sbatch
    return f"job script: {path}; `sbatch {shlex.quote(str(path))}` submits it, {folder}"


def write_script(path: Path, text: str, private: bool) -> None:
    """Write the file; if `private`, only the user can read it, even if it existed before."""
    try:
        with open(path, "w", opener=lambda file, flags: os.open(file, flags, 0o600 if private else 0o666)) as stream:
            if private and stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                os.fchmod(stream.fileno(), 0o600)
            stream.write(text)
    except OSError as error:
        raise RequestError(f"--sbatch {path}: {error.strerror}") from error


def submit(text: str, run: RunFolder) -> str:
    """Create the run's folder and submit the script; return the job's id.

    Raises RequestError with sbatch's message, or if the folder already has a job.
    """
    require("sbatch", "slurm-client", "--submit")
    prepare_folder(run)
    log = run.logs / "slurm.log"
    try:
        log.touch(exist_ok=False)
    except FileExistsError as error:
        raise RequestError(f"{run.path} already belongs to a Slurm job: choose another folder with --run") from error
    except OSError as error:
        raise cannot_write(run.path, error) from error
    with interrupts.interruptible(), tempfile.TemporaryFile("w+") as script:
        script.write(text)
        script.seek(0)
        (done,) = programs.run_all([["sbatch", "--parsable"]], programs.answer_seconds(), script, SUBMIT_SECONDS)
    if done is None:
        raise RequestError(
            f"sbatch has not answered within {programs.answer_seconds():g} s: check with `squeue --me` whether Slurm accepted the job"
        )
    if done.returncode:
        log.unlink(missing_ok=True)
        remove_unused(run)
        message = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise RequestError(f"Slurm rejected the job: {message.removeprefix('sbatch: error: ')}")
    return done.stdout.strip().partition(";")[0]


def state_of(job: str) -> str:
    """The job's state in Slurm's words.

    Empty if Slurm has forgotten the job, NO_ANSWER while Slurm does not answer.
    """
    words = ["squeue", "--noheader", "--job", job, "--format", "%T"]
    (listed,) = programs.run_all([words], programs.answer_seconds())
    if listed is None or any(sign in listed.stderr for sign in NO_CONTROLLER):
        return NO_ANSWER
    return listed.stdout.strip()


def follow(
    job: str,
    run: RunFolder,
    np: int,
    show: Callable[[int, str], None],
    each_time: Callable[[], object],
    interrupted: Callable[[], bool],
) -> None:
    """Show the ranks' output until the job ends; `interrupted()` cancels it."""
    output = RankOutput(run, np, show)
    try:
        while is_unfinished(job) and not interrupted():
            output.poll()
            each_time()
            time.sleep(POLL_SECONDS)
    except interrupts.InterruptedWaitError:
        pass
    if interrupted() and state_of(job) in UNFINISHED:
        cancel(job)
    output.finish()


def is_unfinished(job: str) -> bool:
    """Whether the job has not ended; a signal interrupts the wait for Slurm's answer."""
    with interrupts.interruptible():
        return state_of(job) in UNFINISHED


def cancel(job: str) -> None:
    """Cancel the job; if its launcher runs, it ends the ranks and closes the run's record first."""
    # Slurm refuses to signal a job that has not started, and scancel retries for a minute and more.
    if state_of(job) not in NOT_STARTED:
        with suppress(RequestError):  # it is cancelled below
            call(["scancel", "--batch", "--signal=TERM", job])
        deadline = time.monotonic() + CANCEL_SECONDS
        while state_of(job) in UNFINISHED and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    if state_of(job) in UNFINISHED:
        call(["scancel", job])


def check_outcome(job: str, run: RunFolder) -> None:
    """Raises what the launcher in the job raised: RequestError or RankFailedError."""
    log = run.logs / "slurm.log"
    if not run.run_json.is_file():
        raise RequestError(f"Slurm job {job} ended without a run ({launcher_message(log)}); its output is in {log}")
    record = run.read()
    if record.state == "finished":
        return
    if record.exit_status == RequestError.exit_status:
        raise RequestError(f"Slurm job {job}: {launcher_message(log)}")
    if record.failed_rank is not None:
        own = run.log(record.failed_rank)
        status = record.exit_status or RankFailedError.exit_status
        raise RankFailedError(f"Slurm job {job}: {launcher_message(log)}", last_lines(own), status)
    raise RankFailedError(f"Slurm job {job} ended while its run was {record.state}; see {log}", last_lines(log))


def launcher_message(log: Path) -> str:
    """The launcher's last message in the job's output."""
    ours = [line.removeprefix("hvscale: ") for line in last_lines(log, 1000) if line.startswith("hvscale: ")]
    ours = [line for line in ours if not line.startswith("warning: ")]
    return ours[-1] if ours else (last_lines(log, 1) or ["it wrote nothing"])[0]


def prepare_folder(run: RunFolder) -> None:
    """Create the folder for the job's output; raises what `RunFolder.create` raises.

    The job locks the folder when it runs.
    """
    RunFolder.create(run.path).unlock()


def remove_unused(run: RunFolder) -> None:
    """Remove the folder if it is empty: no run was started, and it would be an unreadable one."""
    remove_empty((run.hvprof, run.logs, run.ranks, run.path))


def prepare_array_folder(run: RunFolder) -> None:
    """Create the folder for the runs of an array, and for their jobs' output.

    Raises RequestError if it holds runs or is in use.
    """
    if run.run_json.exists() or any(run.path.glob("task-*")):
        raise RequestError(f"{run.path} holds runs already: give another folder with --run")
    try:
        lock = FolderLock(run.path)
    except OSError as error:
        raise cannot_write(run.path, error) from error
    with closing(lock):
        run.make_subfolder(run.logs)


def is_inside_an_allocation() -> bool:
    return "SLURM_JOB_ID" in os.environ
