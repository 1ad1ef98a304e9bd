"""`hvscale launch`."""

from typing import Any

from hvscale.cli.app import new_app
from hvscale.cli.console import print_message, print_rank_line, print_warning
from hvscale.cli.launch_options import takes_launch_options
from hvscale.cli.options import COMMAND_LAST, Command

app = new_app()


@app.command(context_settings=COMMAND_LAST)
@takes_launch_options
def launch(command: Command, launch_options: dict[str, Any]) -> None:
    """Start a command on N ranks, keep each rank's output, and leave nothing behind.

    Example: `hvscale launch -np 2 -- python train.py`; with what a tuning study found:
    `hvscale launch -np 2 --settings settings.toml -- python train.py`; with broadcasts by a decision table:
    `hvscale launch -np 4 --collectives table.toml -- python train.py`
    """
    from hvscale.launch.controller import launch

    finished = launch(command=command, **launch_options, show=print_rank_line, warn=print_warning)
    print_message(f"run folder: {finished.path}")
