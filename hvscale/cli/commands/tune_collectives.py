"""`hvscale tune-collectives`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Csv, Json, folder_of, new_app
from hvscale.cli.console import print_document, print_warning, results
from hvscale.cli.launch_options import OF_ONE_JOB, launch_command, launch_options
from hvscale.core.numbers import Minutes, limits
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command("tune-collectives", cls=launch_command(("run", *OF_ONE_JOB)))
def tune_collectives(
    context: typer.Context,
    ops: Annotated[
        str, typer.Option(metavar="NAME,...", help="Tune these collectives: broadcast, allreduce, allgather or gather.")
    ] = "broadcast,allreduce",
    nps: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Tune for these numbers of ranks. [default: the powers of two up to -np, and -np]"
        ),
    ] = None,
    min_bytes: Annotated[
        str, typer.Option("-b", "--min-bytes", metavar="SIZE", help="Start at this message size.")
    ] = "1K",
    max_bytes: Annotated[
        str,
        typer.Option(
            "-e",
            "--max-bytes",
            metavar="SIZE",
            help="Stop at this message size; sizes grow by 4x, and extra sizes are added near crossovers.",
        ),
    ] = "512M",
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Measure only the collectives and sizes in this profiled run."),
    ] = None,
    eager_limits: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE,...|own",
            help="Try these eager limits besides the library's own; own: only that one. [default: 1M between nodes]",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            help="Stop after this many minutes. The same command with --run resumes the study.",
            **limits(Minutes),
        ),
    ] = None,
    exhaustive: Annotated[
        bool,
        typer.Option(
            "--exhaustive", help="Measure every algorithm equally often at every size, to validate the search."
        ),
    ] = False,
    run: Annotated[Path | None, folder_of("study")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Find the fastest algorithm of each collective and write a decision table.

    The table selects by message size and number of ranks.

    Example: `hvscale tune-collectives -np 4 --placement netns --nodes 4 --link 1gbit --minutes 10`,
    then `hvscale launch -np 4 --collectives FOLDER/collectives.toml -- python train.py`
    """
    from hvscale.comm_tuning.collectives.report.tables import CollectivesProgress, rows, terminal_tables, verdict
    from hvscale.comm_tuning.collectives.study import CollectivesStudy

    study = CollectivesStudy.of(
        ops=ops,
        nps=nps,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        eager_limits=eager_limits,
        from_run=from_,
        minutes=minutes,
        exhaustive=exhaustive,
        path=run,
        options=launch_options(context),
    )
    try:
        with CollectivesProgress() as progress:
            study.measure(progress, print_warning)
    finally:
        document = study.document
        if document.decision is not None:
            table = study.path / "collectives.toml"
            files = {"table": table if table.exists() else None, "plots": study.page if study.page_written else None}
            lines = [f"{what}: {path}" for what, path in files.items() if path is not None]
            print_document(
                document,
                json,
                csv,
                write_csv=lambda document, path: write_csv(path, rows(document)),
                show=lambda document: results().print(
                    *terminal_tables(document), verdict(document), sep="\n\n", highlight=False
                ),
                last="\n".join([f"study folder: {study.path}", *lines]),
            )
