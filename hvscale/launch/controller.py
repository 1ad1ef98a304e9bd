"""Starts a job, follows it and ends it; its run folder is readable at any time."""

import os
import platform
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from hvscale.core.errors import HvscaleError, RequestError
from hvscale.core.folder_lock import remove_empty
from hvscale.core.host import describe_host
from hvscale.core.run_folder import NodeRecord, RunFolder, RunRecord, default_run_path
from hvscale.launch import effective_settings, flavours, placements, waiting
from hvscale.launch import environment as job_environment
from hvscale.launch.job import Job, Nodes
from hvscale.launch.mpi import horovod_build
from hvscale.launch.options import NO_HOOKS, LaunchHooks, LaunchOptions, NodeFiles
from hvscale.launch.placements import _slurm_job
from hvscale.launch.supervision import init_marker, processes, programs
from hvscale.launch.supervision.init_marker import InitDeadline
from hvscale.launch.supervision.interrupts import InterruptedWaitError, catch_signals, interruptible
from hvscale.launch.supervision.job_supervisor import JobSupervisor

VERSIONS_OF = ("hvscale", "horovod", "torch", "numpy")


class RunInterruptedError(HvscaleError):
    """A signal ended the run; its folder is complete up to then.

    The exit status is 128 + signal, as in shells.
    """

    def __init__(self, number: int, run: RunFolder, problem: str = "") -> None:
        ended = f"interrupted by {signal.Signals(number).name}; the run folder {run.path} holds the results so far"
        super().__init__(f"{ended}; {problem}" if problem else ended)
        self.exit_status = 128 + number


def launch(command: list[str], options: LaunchOptions, hooks: LaunchHooks = NO_HOOKS) -> RunFolder:
    """Run `command` with `options` and wait for its end.

    Raises RequestError before any rank starts; RankFailedError or RunInterruptedError afterwards.
    """
    if not command:
        raise RequestError("no command; write it after --, for example: hvscale launch -np 2 -- python train.py")
    programs.check_limits()
    flavour = flavours.get(options.mpi)
    passed = passed_environment(command, options, flavour)
    if hooks.show is not None:
        hooks = replace(hooks, show=flavour.hide_report(passed, hooks.show))
    place = placements.choose(options.placement)
    if options.placement.submit and not _slurm_job.is_inside_an_allocation():
        return submit_and_follow(command, options, hooks)
    place.check(options.placement, options.np)
    library = flavours.choose_transport(flavour, flavour.find(passed), options.transport, passed)
    devices_variable = job_environment.library_devices_variable(options.devices, flavour, library)
    passed = flavour.adapt(passed, library)
    horovod_build.check_horovod(command, passed, flavour, library)

    run = RunFolder.create((options.run or default_run_path(command)).absolute())
    built_with: Future[list[str]] = Future()  # asked meanwhile, because it takes as long as a start
    programs.start_thread(lambda: library.transports or flavour.transports(library, passed), built_with)
    with removed_if_refused(run):
        record = RunRecord(
            command=command,
            np=options.np,
            launch=options.recorded().model_dump(mode="json"),
            placement=place.name,
            library=library,
            library_devices_variable=devices_variable,
            environment_passed=sorted(passed),
            versions=versions(),
            host=describe_host(),
            working_directory=str(Path.cwd()),
            started_at=datetime.now(UTC),
        )
        add_rank_environment(run, record, passed, options, flavour, hooks)
        launched = effective_settings.LaunchedJob(run, library, command, {**passed, **record.rank_environment})
        settings_reports = effective_settings.SettingsReports(launched, flavour.settings_reader, options.np)
        record.rank_environment |= settings_reports.variables()
        job_environment.check_not_replaced(options.env, {**record.rank_environment, **own_variables(run, record.np)})
        run.begin(record)
    request = placements.PlacementRequest(options.np, command, run.path, passed, library, options.placement)
    with run.at_work(record), processes.adopt_orphans(), catch_signals() as caught, ExitStack() as stack:
        stack.callback(report_problems, record, run, request, hooks.warn)
        nodes = prepare_nodes(place, request, record, run, stack, caught, hooks)
        record.warnings += early_warnings(record, nodes, passed, options)
        for text in record.warnings:
            hooks.warn(text)
        job = make_job(nodes, record, run, passed)
        start = InitDeadline(run.path, options.np, options.start_timeout)
        supervisor = JobSupervisor(job, flavour, record, run, start, settings_reports, built_with, caught, hooks)
        failure = supervisor.supervise()
    if failure is not None and record.state in ("failed", "interrupted"):
        raise failure.error(run)
    if caught:  # also a signal that came after the job's end: a study must not start its next job
        raise RunInterruptedError(caught[0], run)
    return run


@contextmanager
def removed_if_refused(run: RunFolder) -> Iterator[None]:
    """Context: after an error, the run's folder is unlocked and has only what it held before.

    No run began, so what was written would look like an unreadable run. An empty folder is removed.
    """
    before = set(run.path.iterdir())
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the error matters more
            for path in set(run.path.iterdir()) - before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        remove_empty((run.hvprof, run.logs, run.ranks))
        run.unlock()
        raise


def passed_environment(command: list[str], options: LaunchOptions, flavour: flavours.Flavour) -> dict[str, str]:
    """The job's environment. Raises RequestError if its PATH does not have the command."""
    passed = job_environment.job_environment(flavour, options.env)
    if shutil.which(command[0], path=passed.get("PATH", os.defpath)) is None:
        raise RequestError(f"{command[0]}: command not found or not executable; check the name and PATH")
    return passed


def add_rank_environment(
    run: RunFolder,
    record: RunRecord,
    passed: Mapping[str, str],
    options: LaunchOptions,
    flavour: flavours.Flavour,
    hooks: LaunchHooks,
) -> None:
    """Add the variables for preloaded libraries to the record's `rank_environment`."""
    for one in (hooks.collectives if options.collectives is not None else None, hooks.instrument):
        if one is not None:
            environment = {**passed, processes.NP_VARIABLE: str(options.np), **record.rank_environment}
            record.rank_environment |= one(run, record, environment)
    wait = waiting.environment(record, passed, flavour.has_mpi)
    if options.start_timeout is not None or flavour.has_mpi or wait:
        try:
            marker = init_marker.environment(run.path, {**passed, **record.rank_environment})
            record.rank_environment |= {**marker, **wait}
        except RequestError as error:
            if options.start_timeout is not None:
                raise
            lost = "report the MPI library they run on" + (" or sleep while they wait" if wait else "")
            record.warnings.append(f"ranks cannot {lost}: {error}")


def submit_and_follow(command: list[str], options: LaunchOptions, hooks: LaunchHooks) -> RunFolder:
    """Submit the job to Slurm and show its ranks' output.

    Raises the errors that `launch` raises.
    """
    if _slurm_job.is_array(options.placement):
        raise RequestError(
            "--submit with an array: it has many runs to follow; write its job script with --sbatch FILE, without --submit, "
            "and submit that with `sbatch FILE`"
        )
    run = RunFolder((options.run or default_run_path(command)).absolute())
    script = _slurm_job.job_script("profile" if hooks.instrument else "launch", command, options, run.path)
    with catch_signals() as caught:
        try:
            number = _slurm_job.submit(script, run)
        except InterruptedWaitError as error:
            unsure = "check with `squeue --me` whether Slurm accepted the job"
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
    _slurm_job.check_outcome(number, run)
    return run


def prepare_nodes(
    place: placements.Placement,
    request: placements.PlacementRequest,
    record: RunRecord,
    run: RunFolder,
    stack: ExitStack,
    caught: list[int],
    hooks: LaunchHooks,
) -> Nodes:
    """Create the nodes and prepare the files on them; `stack` collects and removes them.

    If this fails or a signal interrupts it, close the record and raise.
    """
    try:
        with interruptible():
            if caught:
                raise InterruptedWaitError
            nodes = stack.enter_context(place.prepare(request))
            record_nodes(record, nodes)
            if hooks.node_files is not None:
                stack.callback(collect_files, hooks.node_files, hooks.warn, run, record, nodes)
                record.rank_environment |= hooks.node_files.prepare(run, record, nodes)
                run.write(record)  # ranks read their environment there
            return nodes
    except (RequestError, InterruptedWaitError) as error:
        record.ended_at = datetime.now(UTC)
        record.state = "interrupted" if caught else "failed"
        record.exit_status = 128 + caught[0] if caught else RequestError.exit_status
        run.write(record)
        if caught:
            raise RunInterruptedError(caught[0], run) from error
        raise


def collect_files(
    files: NodeFiles, warn: Callable[[str], None], run: RunFolder, record: RunRecord, nodes: Nodes
) -> None:
    """Collect the files on the nodes, and report those that stay there."""
    found = files.collect(run, record, nodes)
    record.warnings += found
    for text in found:
        warn(text)
    with suppress(RequestError):  # the disk is full: the job's own outcome matters more
        run.write(record)


def make_job(nodes: Nodes, record: RunRecord, run: RunFolder, passed: Mapping[str, str]) -> Job:
    """The job with its environment on these nodes."""
    variables = {name: value for name, value in passed.items() if name not in nodes.excluded_variables}
    environment = {**variables, **own_variables(run, record.np)}
    return Job(record.np, record.command, run.path, environment, nodes, record.rank_environment)


def own_variables(run: RunFolder, np: int) -> dict[str, str]:
    """The variables by which a job's processes are known."""
    return {processes.RUN_VARIABLE: str(run.path), processes.NP_VARIABLE: str(np)}


def report_problems(
    record: RunRecord, run: RunFolder, request: placements.PlacementRequest, warn: Callable[[str], None]
) -> None:
    """Report what the placement could not remove."""
    for text in request.problems:
        warn(text)
    if request.problems:
        record.warnings += request.problems
        run.write(record)


def record_nodes(record: RunRecord, nodes: Nodes) -> None:
    record.placement_settings = dict(nodes.settings)
    record.nodes = [
        NodeRecord(name=node.name, address=node.address, interface=node.interface, ranks=nodes.ranks_of(node.name))
        for node in nodes.nodes
    ]


def early_warnings(record: RunRecord, nodes: Nodes, passed: Mapping[str, str], options: LaunchOptions) -> list[str]:
    """Warnings for the user before the job starts."""
    warnings = []
    if nodes.on_this_machine and record.np > record.host.cores:
        warnings.append(
            f"{record.np} ranks on {record.host.cores} cores: "
            "ranks share cores, so timings do not represent a machine with one core per rank"
        )
    if dropped := job_environment.dropped_variables(passed):
        warnings.append(f"not passed to the ranks: {', '.join(dropped)}; add --env NAME to pass one")
    if options.placement.submit:
        warnings.append("--submit: this is inside an allocation, so the job runs on its nodes and nothing is submitted")
    if options.placement.link is not None and record.np > 1 and len(nodes.nodes) == 1:
        warnings.append(
            f"--link {options.placement.link} limits nothing: all {record.np} ranks are on one node, and it limits only "
            "messages between nodes"
        )
    return warnings


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONS_OF:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
