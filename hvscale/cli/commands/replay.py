"""`hvscale replay`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvscale.cli.app import Bins, Csv, Json, new_app
from hvscale.cli.console import (
    print_document,
    print_rank_line,
    print_rank_line_on_stderr,
    print_warning,
    print_warnings,
    results,
)
from hvscale.cli.launch_options import SUBMISSION, collectives_hook, launch_command, launch_options, was_given
from hvscale.core.errors import RequestError
from hvscale.core.memory import without_collections
from hvscale.core.numbers import Count, Ranks, limits
from hvscale.launch.options import OPTIONS
from hvscale.launch.supervision.processes import RUN_VARIABLE

if TYPE_CHECKING:
    from hvscale.profiling.analyze.gradients import JobGradients

OF_THE_TABLE = ("bins", "json", "csv")
COMPUTE = ("auto", "sleep", "spin")
COMMON_TYPES = {"float16", "bfloat16", "float32", "float64", "int32", "int64"}
app = new_app()


@app.command(cls=launch_command(without=("np", *SUBMISSION), resolved=False))
def replay(
    context: typer.Context,
    recorded: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Run folder of a job recorded with hvscale profile, best with --gradients."),
    ],
    np: Annotated[
        int | None,
        typer.Option(
            "-np", "--np", **limits(Ranks), metavar="N", help="Replay on this many ranks. [default: as recorded]"
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(**limits(Count), metavar="N", help="Replay this many steps. [default: as many as were recorded]"),
    ] = None,
    compute: Annotated[
        str | None,
        typer.Option(
            metavar="auto|sleep|spin",
            help="Replace computation by a sleep, which leaves the core free, or by a loop that keeps it busy (spin). "
            "auto: spin if the job computed on CPUs and each rank has a core. "
            "[default: auto; under another command sleep]",
        ),
    ] = None,
    bins: Bins = "study",
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Replay the communication of a recorded job on any number of ranks, without its computation.

    Each rank enqueues tensors of the recorded names and sizes at the recorded times, with real
    Horovod. Prints its steps and messages beside the recorded ones. Under another command it is a
    program like any other.

    Examples: `hvscale replay runs/edsr -np 8 --placement netns --nodes 8 --link 1gbit`; `hvscale
    tune -np 8 -- hvscale replay runs/edsr --steps 1000`
    """
    from hvscale.core.run_folder import RunFolder
    from hvscale.launch import flavours

    if compute is not None and compute not in COMPUTE:
        raise RequestError(f"--compute {compute}: give {', '.join(COMPUTE[:-1])} or {COMPUTE[-1]}")
    options = launch_options(context)
    run = RunFolder.open(recorded)
    given = [name for name in OPTIONS if was_given(context, name)]
    if not given and flavours.launched_place() is not None:
        with without_collections():
            from hvscale.prediction.replay.rank import replay_rank

        refuse_in_rank([name for name in OF_THE_TABLE if was_given(context, name)])
        # A command such as scale compares runs of different np, which then must not differ in this.
        replay_rank(run, steps, compute or "sleep")
        return
    if RUN_VARIABLE in os.environ:
        refuse_in_rank(given)
    from hvscale.cli.launch_options import check_no_study, resolve
    from hvscale.launch.options import LaunchHooks
    from hvscale.prediction.replay.comparison import compare_replay
    from hvscale.prediction.replay.table import replay_table, write_replay_csv
    from hvscale.profiling.analyze.grouping import parse_bins
    from hvscale.profiling.analyze.messages import other_data_warnings, read_job_schedule
    from hvscale.studies.profiled_launch import profiled_launch

    check_no_study(options.run)
    ranges = parse_bins(bins)  # report a mistake before the job starts
    gradients = read_job_schedule(run).timed_on_gpu
    print_warnings([*gradients.warnings, *other_data_warnings(run, gradients)])
    check_types(gradients)
    options = options.replace(np=np or gradients.size)
    count = [] if steps is None else ["--steps", str(steps)]
    command = ["hvscale", "replay", str(recorded.absolute()), *count, "--compute", compute or "auto"]
    options = resolve(command, options)
    show = print_rank_line_on_stderr if json else print_rank_line
    hooks = LaunchHooks(show=show, warn=print_warning, collectives=collectives_hook(options))
    finished = profiled_launch(command, options, hooks)
    document = compare_replay(run, gradients, finished, ranges)
    print_warnings(document.warnings)
    print_document(
        document,
        json,
        csv,
        write_csv=write_replay_csv,
        show=lambda document: results().print(replay_table(document)),
        last=f"run folder: {finished.path}",
    )


def refuse_in_rank(names: list[str]) -> None:
    """Raises RequestError for the first of these options, which a rank of another command lacks."""
    if names:
        flag = f"--{names[0].replace('_', '-')}"
        raise RequestError(
            f"{flag}: another command has started this replay as one of its ranks: give {flag} to that command, or leave it out"
        )


def check_types(gradients: "JobGradients") -> None:
    """Raise RequestError if this PyTorch does not have the type of a tensor."""
    unusual = [tensor for tensor in gradients.tensors if tensor.dtype not in COMMON_TYPES]
    if unusual:
        from hvscale.prediction.replay.rank import find_dtype  # imports PyTorch, which takes seconds

        for tensor in unusual:
            find_dtype(tensor)
