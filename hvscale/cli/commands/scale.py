"""`hvscale scale`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import COMMAND_LAST, Command, Csv, Json, folder_of, new_app
from hvscale.cli.console import results
from hvscale.cli.launch_options import OF_ONE_JOB, launch_command, launch_options
from hvscale.cli.study import measure
from hvscale.core.numbers import Repeats, limits

app = new_app()


@app.command(context_settings=COMMAND_LAST, cls=launch_command(("np", "run", *OF_ONE_JOB)))
def scale(
    command: Command,
    context: typer.Context,
    np: Annotated[
        str, typer.Option("-np", "--np", metavar="N,N,...", help="Numbers of ranks to measure, such as 1,2,4.")
    ],
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Fresh starts on each number of ranks, interleaved; a single one gives no confidence interval.",
            **limits(Repeats),
        ),
    ] = 3,
    strong: Annotated[
        bool,
        typer.Option(
            "--strong/--weak",
            help="Strong: all ranks together do the same work on any np; in COMMAND {np} stands for np and {64/np} for a rank's share. "
            "Weak: each rank does.",
        ),
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Finds the throughput in the ranks' output: the group `per_rank` is each rank's own, `total` or the first that of all together. "
            "Not needed for hvscale train, and where Horovod's `Total img/sec` is printed.",
        ),
    ] = None,
    run: Annotated[Path | None, folder_of("measurement")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Measure how a command scales: throughput, speed-up and scaling efficiency on each number of
    ranks, with confidence intervals.

    Example: `hvscale scale --np 1,2,4 -- hvscale train edsr-baseline --steps 100 --threads 1`
    """
    from hvscale.studies.scaling.output import table, write_scaling_csv
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
    measure(
        study,
        json,
        csv,
        write=write_scaling_csv,
        show=lambda document: results().print(table(document).table()),
        last=f"scale folder: {study.path}\nplot: {study.page}",
    )
