"""`hvscale bench app`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Csv, Json, folder_of, new_app
from hvscale.cli.console import measure_and_print, results
from hvscale.cli.launch_options import OF_ONE_JOB, check_knobs, launch_command, launch_options, was_given
from hvscale.core.errors import RequestError
from hvscale.core.numbers import Repeats, limits
from hvscale.report.csv_file import write_csv

app = new_app()
FLAGS = ["-O2", "-O3", "-O3 -march=native"]  # of the published study, experiments/S3


@app.command("app", cls=launch_command(("np", "run", *OF_ONE_JOB)))
def bench_app(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Program: integration, stencil, merge_sort or network.")],
    context: typer.Context,
    flags: Annotated[
        list[str],
        typer.Option(metavar="FLAGS", help="Build with these compiler flags; repeat the option for several builds."),
    ] = FLAGS,
    np: Annotated[
        str | None,
        typer.Option(
            "-np",
            "--np",
            metavar="N,N,...",
            help="Measure on these numbers of ranks, such as 1,2,4. [default: the two smallest the program supports]",
        ),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Start each variant this many times, interleaved; quartiles need at least two starts, intervals six.",
            **limits(Repeats),
        ),
    ] = 10,
    size: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=NUMBER",
            help="Set a parameter of the program; repeatable. `full` sets all parameters as in the published study.",
        ),
    ] = [],  # noqa: B006 - as Typer wants it
    counters: Annotated[
        bool,
        typer.Option(
            "--counters/--no-counters", help="Count hardware events with perf in one extra start of each variant."
        ),
    ] = True,
    run: Annotated[Path | None, folder_of("measurement")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Build an MPI program with each set of compiler flags and measure it in each placement.

    Prints box plots, the best flags, speed-up and overhead. `--placement` takes a comma-separated
    list; the first one is the baseline.

    Example: `hvscale bench app stencil --flags "-O2" --flags "-O3 -march=native" --np 1,2,4
    --placement host,docker:node --repeat 10`
    """
    from hvscale.bench.applications.output import tables
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
    if counters and not study.application.is_timed and was_given(context, "counters"):
        raise RequestError(f"--counters is for programs that are timed as a whole, and {name} is not: leave it out")
    check_knobs([], launch_options(context), study.document.np)
    measure_and_print(
        study,
        json,
        csv,
        write_csv=lambda document, path: write_csv(path, document.bandwidth or document.rows),
        show=lambda document: results().print(*(one.table() for one in tables(document)), sep="\n\n"),
        last=f"bench folder: {study.path}",
        page="plots",
    )
