"""`hvscale demo`."""

import sys
from typing import Annotated

import typer

from hvscale.cli.app import new_app
from hvscale.cli.console import print_message, print_rank_line, print_warning, results, working
from hvscale.cli.launch_options import RunPath
from hvscale.cli.tables import print_breakdown
from hvscale.core.numbers import Seconds, limits
from hvscale.trainer.demo import SECONDS

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
    """Train a small EDSR on two ranks, measure it on an unseen photo, and show where its
    communication time went.

    Example: `hvscale demo --seconds 10`
    """
    from hvscale.cli.demo import demo
    from hvscale.core.run_folder import RunFolder
    from hvscale.launch.options import LaunchHooks
    from hvscale.studies.run_report.page import report_path, write_report
    from hvscale.trainer.progress import Bar

    how_long = "about a minute" if seconds == SECONDS else f"{seconds:g} s of training"
    print_message(f"training a small EDSR x2 on the bundled photos, two Horovod ranks over Open MPI, {how_long}")
    if sys.stderr.isatty():
        with Bar() as bar:
            hooks = LaunchHooks(warn=print_warning, watch=lambda running: bar.follow(running.steps))
            done = demo(seconds, run, hooks)
    else:
        done = demo(seconds, run, LaunchHooks(warn=print_warning, show=print_rank_line))
    results().print(f"\n{done.training.summary()}\n", highlight=False, soft_wrap=True)
    print_breakdown(done.communication)
    folder = RunFolder.open(done.training.run)
    with working("writing the report"):
        write_report([folder], report_path([folder]))
    results().print(
        f"\nrun folder: {folder.path}\npicture:    {done.training.picture}\nreport:     {report_path([folder])}",
        highlight=False,
        soft_wrap=True,
    )
