"""`hvscale bench experiment`."""

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from hvscale.commands.app import new_app
from hvscale.commands.console import print_json, print_message, print_warning, write_csv
from hvscale.commands.options import Csv, Json
from hvscale.launch_options import takes_launch_options

app = new_app()


@app.command("experiment")
@functools.partial(
    takes_launch_options, without=("np", "collectives", "run", "sbatch", "submit", "sbatch_option"), resolved=False
)
def bench_experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The study's experiment.toml.")],
    launch_options: dict[str, Any],
    part: Annotated[
        str,
        typer.Option(metavar="here|study", help="Its size for a machine of few cores, or the study's own."),
    ] = "here",
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="The folder of the experiment; one that was broken off is gone on with. By default a new one under runs/.",
        ),
    ] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Make a published study again and test what it says: each of its statements holds, does not hold, or cannot be said here.

    The options of a launch are for all of its measurements; `--placement` takes the place of those that the file names.

    Example: `hvscale bench experiment experiments/S3/experiment.toml --run S3`
    """
    from hvscale.bench.experiment.output import text
    from hvscale.bench.experiment.study import ExperimentStudy
    from hvscale.scaling.output import RunsShown

    study = ExperimentStudy.of(file, part, launch_options, run)
    document = study.document
    try:
        study.measure(showing=RunsShown, warn=print_warning)
    finally:
        if document.statements and study.page.exists():
            if csv is not None:
                write_csv(csv, document.comparisons())
            if json:
                print_json(document)
            else:
                print(text(document))
            print_message(f"experiment folder: {study.path}\nplots: {study.page}")
