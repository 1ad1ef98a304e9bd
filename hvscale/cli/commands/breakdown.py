"""`hvscale breakdown`."""

from hvscale.cli.app import Bins, Csv, Explain, Json, PerRank, RunArgument, new_app
from hvscale.cli.console import print_breakdown, progress_bar

app = new_app()


@app.command()
def breakdown(
    run: RunArgument,
    bins: Bins = "study",
    per_rank: PerRank = False,
    explain: Explain = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Print the communication time of a profiled run by message size, and what explains it.

    Example: `hvscale breakdown runs/20261121T001530Z-train --bins pow2`
    """
    from hvscale.core.run_folder import RunFolder
    from hvscale.profiling.analyze.breakdown import require_complete
    from hvscale.profiling.analyze.explanation import explained_breakdown

    folder = RunFolder.open(run)
    with progress_bar():
        table = explained_breakdown(folder, bins, explain)
    print_breakdown(table, per_rank, json, csv, explain=explain)
    require_complete(folder, table.incomplete)
