"""`hvscale compare`."""

from hvscale.cli.app import Bins, Csv, Json, RunArgument, new_app
from hvscale.cli.console import working
from hvscale.cli.tables import print_document

app = new_app()


@app.command()
def compare(before: RunArgument, after: RunArgument, bins: Bins = "study", json: Json = False, csv: Csv = None) -> None:
    """Compare two runs of the same work by message size: time before and after, and the gain with
    its confidence interval.

    Example: `hvscale compare runs/default runs/tuned`
    """
    from hvscale.core.errors import UntrustedError
    from hvscale.core.run_folder import RunFolder
    from hvscale.launch.mpi.reported_library import require_asked_library
    from hvscale.profiling.compare import compare
    from hvscale.studies.run_report.compare_tables import comparison_table, write_comparison_csv

    with working("comparing"):
        comparison = compare(RunFolder.open(before), RunFolder.open(after), bins)
    print_document(comparison, [comparison_table(comparison)], write_comparison_csv, json, csv)
    if comparison.incomplete is not None:
        raise UntrustedError(
            f"the comparison cannot be trusted, because a profile is incomplete: {comparison.incomplete}"
        )
    for run in (before, after):
        require_asked_library(RunFolder.open(run).read())
