"""`hvscale profile`."""

from typing import Annotated

import typer

from hvscale.cli.app import COMMAND_LAST, Autotune, AutotuneSteps, Bins, Command, Csv, Explain, Json, PerRank, new_app
from hvscale.cli.console import (
    print_breakdown,
    print_gradients,
    print_rank_line,
    print_rank_line_on_stderr,
    print_warning,
    progress_bar,
)
from hvscale.cli.launch_options import collectives_hook, launch_command, launch_options, start_tuned

app = new_app()


@app.command(context_settings=COMMAND_LAST, cls=launch_command(recording=True))
def profile(
    command: Command,
    context: typer.Context,
    timeline: Annotated[
        bool,
        typer.Option(
            "--timeline",
            help="Record Horovod's timeline (negotiation, queueing, copies) under MPI too; under Gloo it is always recorded.",
        ),
    ] = False,
    gradients: Annotated[
        bool,
        typer.Option(
            "--gradients",
            help="Record when each rank enqueues its gradients and how long it waits for them, in any program that uses horovod.torch.",
        ),
    ] = False,
    autotune: Autotune = False,
    autotune_steps: AutotuneSteps = None,
    bins: Bins = "study",
    per_rank: PerRank = False,
    explain: Explain = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Launch an unchanged command and print its communication time by message size.

    Example: `hvscale profile -np 2 -- python train.py`
    """
    from hvscale.launch.mpi.reported_library import require_requested_library
    from hvscale.launch.options import LaunchHooks
    from hvscale.profiling.analyze.breakdown import require_complete
    from hvscale.profiling.analyze.explanation import explained_breakdown
    from hvscale.profiling.analyze.grouping import parse_bins
    from hvscale.studies.profiled_launch import profiled_launch

    parse_bins(bins)  # report a mistake before the job starts
    show = print_rank_line_on_stderr if json else print_rank_line
    options = launch_options(context)
    hooks = LaunchHooks(show=show, warn=print_warning, collectives=collectives_hook(options))
    finished = start_tuned(
        command,
        options,
        autotune,
        autotune_steps,
        lambda also: profiled_launch(command, options, hooks, timeline=timeline, gradients=gradients, further=also),
    )
    with progress_bar():
        table = explained_breakdown(finished, bins, explain)
    print_breakdown(table, per_rank, json, csv, explain=explain, last=f"run folder: {finished.path}")
    if timeline and not finished.timeline.is_file():
        print_warning("no timeline was recorded: --timeline needs a program that uses Horovod")
    if gradients:
        print_gradients(finished)
    require_complete(finished, table.incomplete)
    require_requested_library(finished.read())
