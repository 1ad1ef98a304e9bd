"""`hvscale knobs`."""

from typing import Annotated

import typer

from hvscale.cli.app import Csv, Json, new_app
from hvscale.cli.console import print_document, results
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command()
def knobs(
    word: Annotated[
        str | None,
        typer.Argument(metavar="WORD", help="Show only this knob, library or flavour.", show_default=False),
    ] = None,
    mpi: Annotated[
        str | None,
        typer.Option(
            "--mpi",
            metavar="FLAVOUR",
            help="Show only the libraries of a job with this --mpi, or one library: horovod, mvapich2-gdr, ucx, nccl ...",
        ),
    ] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """List the knobs of --set: what each one means and what each library calls it.

    Example: `hvscale launch -np 2 --set allreduce_algorithm=ring -- python train.py`
    """
    from hvscale.comm_tuning.knobs.table import knobs as listed
    from hvscale.comm_tuning.knobs.table import knobs_tables

    print_document(
        listed(mpi, word),
        json,
        csv,
        write_csv=lambda document, path: write_csv(path, document.rows),
        show=lambda document: results().print(*knobs_tables(document), sep="\n\n"),
    )
