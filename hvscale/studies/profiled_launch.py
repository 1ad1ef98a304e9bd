"""Launches a command and records its collectives."""

from dataclasses import replace

from hvscale import profiling
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.launch.controller import launch
from hvscale.launch.mpi.probe import has_large_counts
from hvscale.launch.options import NO_HOOKS, LaunchHooks, LaunchOptions
from hvscale.profiling.record import gradients_environment, nccl_environment
from hvscale.profiling.record.space import ring_environment


def profiled_launch(
    command: list[str],
    options: LaunchOptions,
    hooks: LaunchHooks = NO_HOOKS,
    *,
    timeline: bool = False,
    gradients: bool = False,
) -> RunFolder:
    """Launch the command with hvprof preloaded into every rank.

    Under Gloo, which hvprof cannot see, Horovod writes its timeline instead. `timeline`: have
    Horovod write it under MPI too. `gradients`: record when each rank enqueues its gradients.
    NCCL's calls are recorded where the ranks use NCCL.

    Raises as `launch`; the profile up to then can still be read.
    """
    recorded: list[RunFolder] = []

    def instrument(run: RunFolder, record: RunRecord, environment: dict[str, str]) -> dict[str, str]:
        recorded.append(run)
        under_gloo = not record.library.has_mpi
        large_counts = has_large_counts(command, environment, record.library)
        mpi = {} if under_gloo else profiling.preload_environment(run, environment, large_counts=large_counts)
        horovod = profiling.timeline_environment(run) if timeline or under_gloo else {}
        hook = gradients_environment(run, environment) if gradients else {}
        rings = ring_environment(run, record, environment)
        return {**mpi, **rings, **horovod, **nccl_environment(run, environment), **hook}

    try:
        return launch(command, options, replace(hooks, instrument=instrument))
    finally:
        for run in recorded:
            profiling.trim_profiles(run)
