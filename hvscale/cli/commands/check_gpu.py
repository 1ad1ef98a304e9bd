"""`hvscale check-gpu`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Csv, Json, new_app
from hvscale.cli.console import print_document, print_table, results
from hvscale.cli.model_options import check_csv
from hvscale.core.errors import RequestError
from hvscale.launch import flavours
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command()
def check_gpu(
    only: Annotated[
        list[str],
        typer.Option("--only", metavar="PART,...", help="Run only these parts of --list; repeatable. [default: all]"),
    ] = [],  # noqa: B006 - Typer copies it
    show_list: Annotated[bool, typer.Option("--list", help="List the parts with their time limits and exit.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Run each part on the CPU, as far as it needs no GPU, with small models; no claim counts as held.",
        ),
    ] = False,
    mpi: Annotated[
        str, typer.Option("--mpi", metavar="FLAVOUR", help="Start the ranks with this MPI library.")
    ] = flavours.of_this_environment(),
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="DIR", help="Write the results to this folder. [default: a new folder under runs/]"
        ),
    ] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Check everything that needs a GPU, in at most 20 minutes: NCCL, the profiler, knobs, speed.

    Needs no network. One GPU is enough: ranks share it. Exit status 4 if a line failed.

    Example: `hvscale check-gpu --only horovod-nccl,nccl-plugin`
    """
    from hvscale.bench.gpu_check.check import GpuCheck, select
    from hvscale.bench.gpu_check.output import CheckProgress, list_rows, rows, terminal_table

    if show_list and (json or csv is not None):
        raise RequestError("--list prints a table only: leave out --json and --csv")
    if show_list:
        print_table(["part", "limit", "what it checks"], list_rows(select(only)))
        return
    if csv is not None:
        check_csv(csv, run)
    check = GpuCheck.of(only, dry_run=dry_run, mpi=mpi, folder=run)
    try:
        with CheckProgress(check.document.steps) as progress:
            check.run(progress)
    finally:
        if check.document.lines:
            page = f"\npage: {check.page}" if check.page.exists() else ""
            print_document(
                check.document,
                json,
                csv,
                write_csv=lambda document, path: write_csv(path, rows(document)),
                show=lambda document: results().print(terminal_table(document)),
                last=f"{check.document.summary}\nfolder: {check.path}{page}",
            )
