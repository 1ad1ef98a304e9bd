"""`hvscale bench experiment`."""

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from hvscale.cli.app import new_app
from hvscale.cli.console import print_text, print_warning
from hvscale.cli.launch_options import SUBMISSION, takes_launch_options
from hvscale.cli.options import Csv, Json, folder_of
from hvscale.cli.study import print_document
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command("experiment")
@functools.partial(takes_launch_options, without=("np", "run", *SUBMISSION), resolved=False)
def bench_experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The study's experiment.toml.")],
    launch_options: dict[str, Any],
    part: Annotated[
        str,
        typer.Option(metavar="here|study", help="Its size for a machine of few cores, or the study's own."),
    ] = "here",
    run: Annotated[Path | None, folder_of("experiment")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Make a published study again and test what it says: each of its statements holds, does not hold, or cannot be said here.

    The options of a launch are for all of its measurements; `--placement` takes the place of those that the file names. `--collectives` is the
    table of those that the file wants with one.

    Example: `hvscale bench experiment experiments/S3/experiment.toml --run S3`
    """
    from hvscale.bench.experiments.output import text
    from hvscale.bench.experiments.study import ExperimentStudy
    from hvscale.report.progress import RunProgress

    study = ExperimentStudy.of(file, part, launch_options, run)
    try:
        study.measure(RunProgress, print_warning)
    finally:
        if study.document.statements and study.page.exists():
            print_document(
                study.document,
                json,
                csv,
                write=lambda document, path: write_csv(path, document.comparisons()),
                show=lambda document: print_text(text(document)),
                last=f"experiment folder: {study.path}\nplots: {study.page}",
            )
