"""`hvscale launch`."""

import typer

from hvscale.cli.app import COMMAND_LAST, Autotune, AutotuneSteps, Command, new_app
from hvscale.cli.console import print_message, print_rank_line, print_warning
from hvscale.cli.launch_options import collectives_hook, launch_command, launch_options, start_tuned

app = new_app()


@app.command(context_settings=COMMAND_LAST, cls=launch_command())
def launch(
    command: Command,
    context: typer.Context,
    autotune: Autotune = False,
    autotune_steps: AutotuneSteps = None,
) -> None:
    """Start a command on N ranks, record each rank's output, and clean up at the end.

    Example: `hvscale launch -np 2 -- python train.py`

    With the result of a tuning study: `hvscale launch -np 2 --settings settings.toml -- python
    train.py`

    Tune while it trains: `hvscale launch -np 2 --autotune -- python train.py`
    """
    from dataclasses import replace

    from hvscale.launch.controller import launch
    from hvscale.launch.options import LaunchHooks

    options = launch_options(context)
    hooks = LaunchHooks(show=print_rank_line, warn=print_warning, collectives=collectives_hook(options))
    finished = start_tuned(
        command,
        options,
        autotune,
        autotune_steps,
        lambda instrument: launch(command, options, replace(hooks, instrument=instrument)),
    )
    print_message(f"run folder: {finished.path}")
