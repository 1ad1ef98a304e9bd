"""`hvscale compare`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Bins, Csv, Json, new_app
from hvscale.cli.console import print_document, print_warnings, progress_bar, results

app = new_app()


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Run folder: before the change.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Run folder: after the change.")],
    bins: Bins = "study",
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Compare two runs of the same program by message size.

    Prints the time before and after and the gain with its confidence interval.

    Example: `hvscale compare runs/default runs/tuned`
    """
    from hvscale.core.errors import UntrustedError
    from hvscale.core.run_folder import RunFolder
    from hvscale.launch.mpi.reported_library import require_requested_library
    from hvscale.profiling.compare import compare
    from hvscale.studies.run_report.compare_tables import comparison_table, write_comparison_csv

    with progress_bar():
        comparison = compare(RunFolder.open(before), RunFolder.open(after), bins)
    print_warnings(comparison.warnings)
    print_document(
        comparison,
        json,
        csv,
        write_csv=write_comparison_csv,
        show=lambda document: results().print(comparison_table(document)),
    )
    if comparison.incomplete is not None:
        raise UntrustedError(
            f"the comparison cannot be trusted because a profile is incomplete: {comparison.incomplete}"
        )
    for run in (before, after):
        require_requested_library(RunFolder.open(run).read())
