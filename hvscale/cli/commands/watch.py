"""`hvscale watch`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hvscale.cli.app import Bins, Json, new_app
from hvscale.cli.console import print_json, results

NICENESS = 10  # on a node of the job, the ranks go first

app = new_app()


class WatchCommand(TyperCommand):
    """A command whose --serve may have a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give --serve its default where no number follows it."""
        given = list(args)
        if "--serve" in given:
            place = given.index("--serve") + 1
            if place == len(given) or not given[place].lstrip("-").isdigit():
                given.insert(place, "0")
        return super().parse_args(ctx, given)


@app.command(cls=WatchCommand)
def watch(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Run folder. [default: the newest run under runs/ that is running]"),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Refresh at this interval, in seconds.", min=0.1, max=3600),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Watch for one interval, print what happened in it, and exit.")
    ] = False,
    serve: Annotated[
        int | None,
        typer.Option(
            metavar="[PORT]",
            help="Show a web page on 127.0.0.1 instead, for a browser here or at the other end of an ssh tunnel. "
            "Without PORT, any free port is used.",
            min=0,
            max=65535,
        ),
    ] = None,
    bins: Bins = "study",
    json: Json = False,
) -> None:
    """Watch a job that runs: rates by message size, late ranks, steps and output.

    Reads the run folder and does not touch the job. Press q to leave. Without a terminal it prints
    a line for each interval.

    Example: `hvscale watch runs/20261121T001530Z-train --interval 5`
    """
    from hvscale.cli.watch_view import print_state, sample_once, watch_live, watch_plainly
    from hvscale.core.errors import RequestError
    from hvscale.core.run_folder import RunFolder
    from hvscale.profiling.watch.running import newest_running
    from hvscale.profiling.watch.sampler import WatchSampler

    if json and not once:
        raise RequestError("--json prints one document: add --once")
    if serve is not None and once:
        raise RequestError("--serve shows a page until you stop it: leave out --once")
    folder = RunFolder.open(run) if run is not None else newest_running(Path("runs"))
    sampler = WatchSampler(folder, bins, interval)
    os.nice(NICENESS)
    if serve is not None:
        from hvscale.cli.watch_page import serve_page

        serve_page(sampler, interval, serve)
    elif once:
        sample = sample_once(sampler, interval)
        print_json(sample) if json else print_state(sample)
    elif sys.stdout.isatty() and not results().is_dumb_terminal:
        watch_live(sampler, interval)
    else:
        watch_plainly(sampler, interval)
