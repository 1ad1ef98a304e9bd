"""`hvscale replay`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import new_app
from hvscale.cli.console import print_message, print_rank_line, print_warning
from hvscale.cli.launch_options import SUBMISSION, collectives_hook, launch_command, launch_options, was_given
from hvscale.core.errors import RequestError
from hvscale.core.numbers import Count, Ranks, limits
from hvscale.launch.options import OPTIONS

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
        typer.Option("-np", "--np", **limits(Ranks), metavar="N", help="Number of ranks. Default: as recorded."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(**limits(Count), metavar="N", help="Steps to replay. Default: as many as were recorded."),
    ] = None,
    compute: Annotated[
        str,
        typer.Option(
            metavar="sleep|spin",
            help="Replace computation by a sleep, which leaves the core free, or by a loop that keeps it busy.",
        ),
    ] = "sleep",
) -> None:
    """Replay the communication of a recorded job on any number of ranks, without its computation.

    Each rank enqueues tensors of the recorded names and sizes at the recorded times, with real
    Horovod. Under another command it is a program like any other.

    Examples: `hvscale replay runs/edsr -np 8 --placement netns --nodes 8 --link 1gbit`; `hvscale
    tune -np 8 -- hvscale replay runs/edsr --steps 1000`
    """
    from hvscale.core.run_folder import RunFolder
    from hvscale.launch import flavours

    if compute not in ("sleep", "spin"):
        raise RequestError(f"--compute {compute}: give sleep or spin")
    options = launch_options(context)
    run = RunFolder.open(recorded)
    given = {name for name in OPTIONS if was_given(context, name)}
    if np is None and not given and flavours.launched_place() is not None:
        from hvscale.prediction.replay.rank import replay_rank

        replay_rank(run, steps, "spin" if compute == "spin" else "sleep")
        return
    from hvscale.cli.launch_options import resolve
    from hvscale.launch.controller import launch
    from hvscale.launch.options import LaunchHooks
    from hvscale.profiling.analyze.messages import read_job_schedule

    gradients = read_job_schedule(run)
    for text in gradients.warnings:
        print_warning(text)
    options = options.replace(np=np or gradients.size)
    count = [] if steps is None else ["--steps", str(steps)]
    command = ["hvscale", "replay", str(recorded.absolute()), *count, "--compute", compute]
    options = resolve(command, options)
    hooks = LaunchHooks(show=print_rank_line, warn=print_warning, collectives=collectives_hook(options))
    finished = launch(command, options, hooks)
    print_message(f"run folder: {finished.path}")
