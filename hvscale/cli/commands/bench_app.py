"""`hvscale bench app`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import new_app
from hvscale.cli.console import results
from hvscale.cli.launch_options import OF_ONE_JOB, launch_command, launch_options
from hvscale.cli.options import Csv, Json, folder_of
from hvscale.cli.study import measure
from hvscale.core.numbers import Repeats, limits

app = new_app()
# Those of the study.
FLAGS = ["-O2", "-O3", "-O3 -march=native"]


@app.command("app", cls=launch_command(("np", "run", *OF_ONE_JOB)))
def bench_app(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The program: integration, stencil, merge_sort or network.")
    ],
    context: typer.Context,
    flags: Annotated[
        list[str],
        typer.Option(metavar="FLAGS", help="What the compiler is given; can be given again, for a build each."),
    ] = FLAGS,
    np: Annotated[
        str | None,
        typer.Option(
            "-np", "--np", metavar="N,N,...", help="Numbers of ranks, such as 1,2,4. [default: the program's two least]"
        ),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N", help="Fresh starts of each, interleaved; a single one gives no quartiles.", **limits(Repeats)
        ),
    ] = 10,
    size: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=NUMBER",
            help="A parameter of the program, or `study` for the study's own size of all; can be given again.",
        ),
    ] = [],  # noqa: B006 - as Typer wants it
    counters: Annotated[
        bool,
        typer.Option("--counters/--no-counters", help="Start each once more with perf around its ranks."),
    ] = True,
    run: Annotated[Path | None, folder_of("measurement")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Build an MPI program with each of the flags and measure it in each place, in turns: box plots, best flags, speed-up, overhead.

    `--placement` takes several with commas between them; the others are compared with the first.

    Example: `hvscale bench app stencil --flags "-O2" --flags "-O3 -march=native" --np 1,2,4 --placement host,docker:node --repeat 10`
    """
    from hvscale.bench.applications.output import tables, write_application_csv
    from hvscale.bench.applications.study import ApplicationStudy

    study = ApplicationStudy.of(
        name,
        flags=flags,
        ranks=np,
        repeats=repeat,
        size=size,
        count=counters,
        path=run,
        options=launch_options(context),
    )
    measure(
        study,
        json,
        csv,
        write=write_application_csv,
        show=lambda document: results().print(*(one.table() for one in tables(document)), sep="\n\n"),
        last=f"bench folder: {study.path}\nplots: {study.page}",
    )
