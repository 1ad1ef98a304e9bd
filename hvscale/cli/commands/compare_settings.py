"""`hvscale compare-settings`."""

from typing import Annotated

import typer

from hvscale.cli.app import Bins, Command, Csv, Json, Metric, Repeat, new_app
from hvscale.cli.console import measure_and_print, results
from hvscale.cli.launch_options import KNOBS, OF_ONE_JOB, launch_command, launch_options
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command(cls=launch_command((*KNOBS, *OF_ONE_JOB)))
def compare_settings(
    settings: Annotated[
        str,
        typer.Argument(
            metavar="SETTINGS",
            help="Settings to compare, separated by commas: mpi, mpi-reg, mpi-opt, nccl, defaults, or files such as settings.toml. The first one is "
            "the baseline.",
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
    """Compare settings with interleaved runs of a command.

    Prints each throughput, the gain with its confidence interval, and the profiles side by side.

    Example: `hvscale compare-settings mpi,mpi-reg,mpi-opt -np 2 -- hvscale train edsr-baseline
    --steps 50 --threads 1`; `hvscale compare-settings defaults,settings.toml -np 2 -- python
    train.py`
    """
    from hvscale.comm_tuning.knobs.named_settings import label, options_by_name
    from hvscale.studies.comparison.settings import SettingsComparison, settings_study
    from hvscale.studies.comparison.summary import summary_table
    from hvscale.studies.run_report.compare_tables import comparison_table

    def show(document: SettingsComparison) -> None:
        tables = [summary_table(document).table(), *map(comparison_table, document.profiles)]
        results().print(*tables, sep="\n\n")

    jobs = options_by_name(settings.split(","), command, launch_options(context))
    study = settings_study(jobs, command, repeats=repeat, metric=metric, bins=bins, folder_name=label)
    measure_and_print(
        study,
        json,
        csv,
        write_csv=lambda document, path: write_csv(path, document.rows),
        show=show,
        last=f"folder: {study.path}",
        page="plot",
    )
