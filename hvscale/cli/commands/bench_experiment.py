"""`hvscale bench experiment`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Csv, Json, folder_of, new_app
from hvscale.cli.console import print_document, print_text, print_warning
from hvscale.cli.launch_options import SUBMISSION, collectives_hook, launch_command, launch_options, resolve
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command("experiment", cls=launch_command(("np", "run", *SUBMISSION), resolved=False))
def bench_experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Definition of the study, experiment.toml.")],
    context: typer.Context,
    part: Annotated[
        str,
        typer.Option(
            metavar="small|full", help="Measure the small version, for a machine with few cores, or the full one."
        ),
    ] = "small",
    run: Annotated[Path | None, folder_of("experiment")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Repeat a published study and test its claims: each holds, fails, or is inconclusive.

    Launch options apply to all measurements. `--placement` replaces the placements in the file.
    `--collectives` gives the decision table for the measurements that use one.

    Example: `hvscale bench experiment experiments/S3/experiment.toml --run S3`
    """
    from hvscale.bench.experiments.document import StatementComparisonRow
    from hvscale.bench.experiments.entries import LaunchContext
    from hvscale.bench.experiments.study import ExperimentStudy
    from hvscale.comm_tuning.knobs.named_settings import NAMED, with_named_settings
    from hvscale.launch.options import LaunchHooks
    from hvscale.report.progress import RunProgress

    options = launch_options(context)
    named = {name: partial(with_named_settings, name) for name in NAMED}
    launching = LaunchContext(options, resolve, LaunchHooks(collectives=collectives_hook(options)), named)
    study = ExperimentStudy.of(file, part, launching, run)
    try:
        study.measure(RunProgress, print_warning)
    finally:
        if study.has_figures():
            from hvscale.bench.experiments.output import text

            plots = f"\nplots: {study.page}" if study.page_written else ""
            print_document(
                study.document,
                json,
                csv,
                write_csv=lambda document, path: write_csv(
                    path, document.comparisons(), list(StatementComparisonRow.model_fields)
                ),
                show=lambda document: print_text(text(document, study.tables())),
                last=f"experiment folder: {study.path}{plots}",
            )
