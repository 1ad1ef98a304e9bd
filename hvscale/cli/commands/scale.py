"""`hvscale scale`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import COMMAND_LAST, Command, Csv, Json, Repeat, folder_of, new_app
from hvscale.cli.console import measure_and_print, results
from hvscale.cli.launch_options import OF_ONE_JOB, check_knobs, launch_command, launch_options
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command(context_settings=COMMAND_LAST, cls=launch_command(("np", "run", *OF_ONE_JOB)))
def scale(
    command: Command,
    context: typer.Context,
    np: Annotated[
        str, typer.Option("-np", "--np", metavar="N,N,...", help="Measure on these numbers of ranks, such as 1,2,4.")
    ],
    repeat: Repeat = 3,
    strong: Annotated[
        bool,
        typer.Option(
            "--strong/--weak",
            help="Keep the total work fixed (strong) or the work per rank (weak). For strong, write {np} in COMMAND "
            "for the number of ranks and {64/np} for a rank's share.",
        ),
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Find the throughput in the ranks' output with this regular expression: group `per_rank` is one "
            "rank's, `total` or the first group that of all ranks. Not needed for hvscale train and for Horovod's "
            "`Total img/sec`.",
        ),
    ] = None,
    run: Annotated[Path | None, folder_of("measurement")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Measure throughput, speed-up and scaling efficiency of a command by number of ranks.

    All figures have confidence intervals.

    Example: `hvscale scale --np 1,2,4 -- hvscale train edsr-baseline --steps 100 --threads 1`
    """
    from hvscale.studies.scaling.document import scaling_table
    from hvscale.studies.scaling.study import ScalingStudy

    study = ScalingStudy.of(
        command,
        ranks=np,
        repeats=repeat,
        scaling="strong" if strong else "weak",
        metric=metric,
        path=run,
        options=launch_options(context),
    )
    check_knobs(command, launch_options(context), study.document.np)
    measure_and_print(
        study,
        json,
        csv,
        write_csv=lambda document, path: write_csv(path, document.rows),
        show=lambda document: results().print(scaling_table(document).table()),
        last=f"scale folder: {study.path}",
        page="plot",
    )
