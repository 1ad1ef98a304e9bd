"""`hvscale knobs`."""

from typing import Annotated

import typer

from hvscale.cli.app import new_app
from hvscale.cli.console import print_json, results
from hvscale.cli.options import Csv, Json
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command()
def knobs(
    mpi: Annotated[
        str | None,
        typer.Option(
            "--mpi",
            metavar="FLAVOUR",
            help="Only those of a job with this --mpi, or of one library: horovod, mvapich2-gdr, ucx, nccl ...",
        ),
    ] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """List what --set can set: each knob's meaning, and how every library spells it.

    Example: `hvscale knobs --mpi openmpi`; then `hvscale launch -np 2 --set fusion_threshold=32M --set allreduce_algorithm=ring -- python train.py`
    """
    from hvscale.comm_tuning.knobs.table import knobs as listed
    from hvscale.comm_tuning.knobs.table import knobs_tables

    document = listed(mpi)
    if csv is not None:
        write_csv(csv, document.rows)
    if json:
        return print_json(document)
    results().print(*knobs_tables(document), sep="\n\n")
    return None
