"""`hvscale compare-placements`."""

from typing import Annotated

import typer

from hvscale.cli.app import Bins, Command, Csv, Json, Metric, Repeat, new_app
from hvscale.cli.console import measure_and_print, results
from hvscale.cli.launch_options import OF_ONE_JOB, launch_command, launch_options
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command(cls=launch_command(("placement", *OF_ONE_JOB)))
def compare_placements(
    placements: Annotated[
        str,
        typer.Argument(
            metavar="PLACEMENTS",
            help="Placements to compare, separated by commas: host, netns, docker:rank, docker:node, ssh, slurm. The first one is the baseline.",
        ),
    ],
    command: Command,
    context: typer.Context,
    repeat: Repeat = 3,
    metric: Metric = None,
    bins: Bins = "study",
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Measure the overhead of placements, such as containers, with interleaved runs of a command.

    Prints each overhead with its confidence interval and the message sizes that cause it. Options
    such as --link apply to every placement that supports them.

    Example: `hvscale compare-placements host,docker:node,docker:rank -np 4 --repeat 5 --
    ./any_mpi_program`
    """
    from hvscale.studies.comparison.placements import PlacementComparison, placement_study
    from hvscale.studies.comparison.summary import summary_table
    from hvscale.studies.run_report.compare_tables import comparison_table

    def show(document: PlacementComparison) -> None:
        tables = [summary_table(document).table(), *map(comparison_table, document.profiles)]
        results().print(*tables, sep="\n\n")
        for sentence in document.sentences():
            results().print(sentence, soft_wrap=True)

    names = [name.strip() for name in placements.split(",")]
    options = launch_options(context)
    study = placement_study(names, command, repeats=repeat, metric=metric, bins=bins, options=options)
    measure_and_print(
        study,
        json,
        csv,
        write_csv=lambda document, path: write_csv(path, document.rows),
        show=show,
        last=f"folder: {study.path}",
        page="plot",
    )
