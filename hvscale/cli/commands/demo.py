"""`hvscale demo`: a small EDSR on two ranks, its gain over bicubic, and its communication time."""

import sys
from typing import Annotated

import typer

from hvscale.cli.app import new_app
from hvscale.cli.console import (
    print_breakdown,
    print_message,
    print_rank_line,
    print_warning,
    results,
    spinner,
)
from hvscale.cli.launch_options import RunPath
from hvscale.core.numbers import Seconds, limits
from hvscale.trainer.demo import SECONDS

RANKS = 2

app = new_app()


@app.command()
def demo(
    seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Train for about this long. On two cores EDSR beats bicubic after 40 s; longer is better.",
            min=1,
            max=limits(Seconds)["max"],
        ),
    ] = SECONDS,
    run: RunPath = None,
) -> None:
    """Train a small EDSR on two ranks, test it on an unseen photo, and profile its communication.

    Example: `hvscale demo --seconds 10`
    """
    from hvscale.launch import flavours
    from hvscale.launch.options import LaunchHooks, LaunchOptions
    from hvscale.profiling.analyze.breakdown import require_complete
    from hvscale.profiling.analyze.explanation import explained_breakdown
    from hvscale.studies.profiled_launch import profiled_launch
    from hvscale.studies.run_report.page import report_path, write_report
    from hvscale.trainer import TrainResult, demo_config
    from hvscale.trainer.progress import TrainingBar

    options = LaunchOptions(np=RANKS, run=run)
    library = flavours.get(options.mpi).library_name
    duration = "about a minute" if seconds == SECONDS else f"{seconds:g} s of training"
    print_message(f"training a small EDSR x2 on the bundled photos, two Horovod ranks over {library}, {duration}")
    command = ["hvscale", "train", *demo_config(seconds=seconds).arguments()]
    if sys.stderr.isatty():
        with TrainingBar() as bar:
            hooks = LaunchHooks(warn=print_warning, watch=lambda running: bar.follow(running.steps))
            folder = profiled_launch(command, options, hooks)
    else:
        folder = profiled_launch(command, options, LaunchHooks(warn=print_warning, show=print_rank_line))
    training = TrainResult.read(folder.path)
    results().print(f"\n{training.summary()}\n", highlight=False, soft_wrap=True)
    table = explained_breakdown(folder)
    print_breakdown(table)
    with spinner("writing the report"):
        write_report([folder], report_path([folder]))
    results().print(
        f"\nrun folder: {folder.path}\npicture:    {training.picture}\nreport:     {report_path([folder])}",
        highlight=False,
        soft_wrap=True,
    )
    require_complete(folder, table.incomplete)
