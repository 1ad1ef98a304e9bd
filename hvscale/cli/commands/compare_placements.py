"""`hvscale compare-placements`."""

from typing import Annotated

import typer

from hvscale.cli.app import Bins, Command, Csv, Json, Metric, new_app
from hvscale.cli.console import results
from hvscale.cli.launch_options import OF_ONE_JOB, launch_command, launch_options
from hvscale.cli.study import measure
from hvscale.core.numbers import Repeats, limits

app = new_app()


@app.command(cls=launch_command(("placement", *OF_ONE_JOB)))
def compare_placements(
    placements: Annotated[
        str,
        typer.Argument(
            metavar="PLACEMENTS",
            help="Names with commas between them, of host, netns, docker:rank, docker:node, ssh, slurm; the others are compared with the "
            "first.",
        ),
    ],
    command: Command,
    context: typer.Context,
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Fresh starts in each placement, interleaved; a single one gives no confidence interval.",
            **limits(Repeats),
        ),
    ] = 3,
    metric: Metric = None,
    bins: Bins = "study",
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Run a command in several placements in turns: the overhead of each with its interval, and the
    messages that it goes into.

    An option such as --link or --ranks-per-container is for all placements that know it.

    Example: `hvscale compare-placements host,docker:node,docker:rank -np 4 --repeat 5 --
    ./any_mpi_program`
    """
    from hvscale.studies.placement_comparison.output import placements_table, where_from, write_placements_csv
    from hvscale.studies.placement_comparison.study import PlacementComparison, placement_study
    from hvscale.studies.run_report.compare_tables import comparison_table

    def show(document: PlacementComparison) -> None:
        results().print(placements_table(document), *map(comparison_table, document.profiles), sep="\n\n")
        for profile in document.profiles:
            results().print(where_from(profile), soft_wrap=True)

    names = [name.strip() for name in placements.split(",")]
    options = launch_options(context)
    turns = placement_study(names, command, repeats=repeat, metric=metric, bins=bins, options=options)
    measure(turns, json, csv, write=write_placements_csv, show=show, last=f"folder: {turns.path}")
