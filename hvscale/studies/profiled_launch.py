"""Launches a command and records its collectives."""

from dataclasses import replace

from hvscale import profiling
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.launch import flavours
from hvscale.launch.controller import launch
from hvscale.launch.mpi.probe import has_large_counts
from hvscale.launch.options import NO_HOOKS, Instrument, LaunchHooks, LaunchOptions
from hvscale.profiling.record import gradients_environment, nccl_environment
from hvscale.profiling.record.space import disk_of, ring_environment
from hvscale.studies.node_local_profiles import NodeLocalProfiles


def profiled_launch(
    command: list[str],
    options: LaunchOptions,
    hooks: LaunchHooks = NO_HOOKS,
    *,
    timeline: bool = False,
    gradients: bool = False,
    further: Instrument | None = None,
) -> RunFolder:
    """Launch the command with hvprof preloaded into every rank.

    `options.record` and `options.record_dir` say what it keeps, and where. Under Gloo, which hvprof
    cannot see, Horovod writes its timeline instead. `timeline`: have
    Horovod write it under MPI too. `gradients`: record when each rank enqueues its gradients.
    NCCL's calls are recorded where the ranks use NCCL. `further`: gives the ranks more variables.

    Raises as `launch`; the profile up to then can still be read.
    """
    under_gloo = not flavours.get(options.mpi).has_mpi
    if under_gloo and (options.record or options.record_dir):
        raise RequestError(
            f"--{'record-dir' if options.record_dir else 'record'} does not apply to --mpi {options.mpi}: only Horovod's "
            "timeline records its calls"
        )
    recorded: list[RunFolder] = []
    local = NodeLocalProfiles(options.record_dir.absolute()) if options.record_dir is not None else None

    def instrument(run: RunFolder, record: RunRecord, environment: dict[str, str]) -> dict[str, str]:
        recorded.append(run)
        large_counts = has_large_counts(command, environment, record.library)
        mpi = {} if under_gloo else profiling.preload_environment(run, environment, large_counts=large_counts)
        horovod = profiling.timeline_environment(run) if timeline or under_gloo else {}
        hook = gradients_environment(run, environment) if gradients else {}
        counted = {"HVPROF_RECORD": "counters"} if options.record == "counters" else {}
        if local is not None:
            local.environment = environment
        rings = ring_environment(record, environment, [disk_of(run, record)]) if local is None else {}
        found = {**mpi, **rings, **counted, **horovod, **nccl_environment(run, environment), **hook}
        return {**found, **further(run, record, {**environment, **found})} if further is not None else found

    try:
        return launch(command, options, replace(hooks, instrument=instrument, node_files=local))
    finally:
        for run in recorded:
            profiling.trim_profiles(run)
