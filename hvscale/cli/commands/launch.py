"""`hvscale launch`."""

from typing import Annotated

import typer

from hvscale.cli.app import COMMAND_LAST, Command, new_app
from hvscale.cli.console import print_message, print_rank_line, print_warning
from hvscale.cli.launch_options import collectives_hook, launch_command, launch_options
from hvscale.core.numbers import Count, limits

app = new_app()


@app.command(context_settings=COMMAND_LAST, cls=launch_command())
def launch(
    command: Command,
    context: typer.Context,
    autotune: Annotated[
        bool,
        typer.Option(
            "--autotune",
            help="Find faster settings while the job trains, in any program that uses horovod.torch, and remember them for its next start.",
        ),
    ] = False,
    autotune_steps: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --autotune: tune for this many steps. [default: 150]", **limits(Count)),
    ] = None,
) -> None:
    """Start a command on N ranks, record each rank's output, and clean up at the end.

    Example: `hvscale launch -np 2 -- python train.py`

    With the result of a tuning study: `hvscale launch -np 2 --settings settings.toml -- python
    train.py`

    Tune while it trains: `hvscale launch -np 2 --autotune -- python train.py`
    """
    from hvscale.core.errors import RequestError
    from hvscale.launch.controller import launch
    from hvscale.launch.options import LaunchHooks

    options = launch_options(context)
    hooks = LaunchHooks(show=print_rank_line, warn=print_warning, collectives=collectives_hook(options))
    if autotune:
        from hvscale.comm_tuning.autotune.job import STEPS, Autotune

        tuning = Autotune(command, options, autotune_steps or STEPS, print_warning)
        finished = tuning.launch(hooks, print_message)
    elif autotune_steps is not None:
        raise RequestError("--autotune-steps has no effect without --autotune: add it, or leave out --autotune-steps")
    else:
        finished = launch(command, options, hooks)
    print_message(f"run folder: {finished.path}")
