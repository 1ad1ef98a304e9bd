"""`hvscale profile`."""

from typing import Annotated

import typer

from hvscale.cli.app import COMMAND_LAST, Bins, Command, Csv, Explain, Json, PerRank, new_app
from hvscale.cli.console import print_message, print_rank_line, print_rank_line_aside, print_warning
from hvscale.cli.launch_options import collectives_hook, launch_command, launch_options
from hvscale.cli.tables import print_breakdown, print_gradients

app = new_app()


@app.command(context_settings=COMMAND_LAST, cls=launch_command())
def profile(
    command: Command,
    context: typer.Context,
    timeline: Annotated[
        bool,
        typer.Option(
            "--timeline",
            help="Have Horovod write its timeline under MPI, too: it tells negotiation, queueing and copies. Under Gloo it always does.",
        ),
    ] = False,
    gradients: Annotated[
        bool,
        typer.Option(
            "--gradients",
            help="Record when each rank enqueues its gradients and how long it waits for them, for any program "
            "that uses horovod.torch. Default: off.",
        ),
    ] = False,
    bins: Bins = "study",
    per_rank: PerRank = False,
    explain: Explain = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Launch a command, record its collectives, and print where the time went by message size. The
    command needs no change.

    Example: `hvscale profile -np 2 -- python train.py`
    """
    from hvscale.launch.mpi.reported_library import require_asked_library
    from hvscale.launch.options import LaunchHooks
    from hvscale.profiling.analyze.breakdown import require_complete
    from hvscale.profiling.analyze.explanation import explained_breakdown
    from hvscale.profiling.analyze.grouping import parse_bins
    from hvscale.studies.profiled_launch import profiled_launch

    parse_bins(bins)  # a mistake here is to be known before the job, not after it
    show = print_rank_line_aside if json else print_rank_line
    options = launch_options(context)
    hooks = LaunchHooks(show=show, warn=print_warning, collectives=collectives_hook(options))
    finished = profiled_launch(command, options, hooks, timeline=timeline, gradients=gradients)
    table = explained_breakdown(finished, bins, explain)
    print_breakdown(table, per_rank, json, csv, unasked=explain is None)
    if gradients:
        print_gradients(finished)
    print_message(f"run folder: {finished.path}")
    require_complete(finished, table.incomplete)
    require_asked_library(finished.read())
