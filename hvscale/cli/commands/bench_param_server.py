"""`hvscale bench param-server`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.bench.collectives.backends import check_mpi
from hvscale.cli.app import Csv, Json, folder_of, new_app
from hvscale.cli.console import measure_and_print, results
from hvscale.cli.launch_options import OF_ONE_JOB, launch_command, launch_options, resolve, was_given
from hvscale.core.errors import RequestError
from hvscale.core.numbers import Count, CountOrZero, Repeats, limits
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command("param-server", cls=launch_command(("np", "run", *OF_ONE_JOB), resolved=False))
def bench_param_server(
    context: typer.Context,
    backend: Annotated[
        list[str],
        typer.Option(
            metavar="NAME,...",
            help="Measure these libraries; repeatable. Values: mpi (the flavour of --mpi), openmpi, mpich, mvapich2, "
            "intelmpi, gloo, nccl (NCCL between workers, the flavour of --mpi to the server), nccl-openmpi, "
            "nccl-mpich. [default: mpi,gloo; with --device cuda mpi,nccl]",
        ),
    ] = [],  # noqa: B006 - as Typer wants it
    workers: Annotated[
        str,
        typer.Option(
            metavar="N,N,...", help="Measure with these numbers of workers; the server is an additional rank."
        ),
    ] = "1,2",
    operation: Annotated[
        str, typer.Option(metavar="NAME,...", help="Measure these operations: broadcast, gather or allreduce.")
    ] = "broadcast,gather,allreduce",
    size: Annotated[
        str,
        typer.Option(
            "--bytes", metavar="SIZE", help="Set the size of the model's parameters and of each worker's gradients."
        ),
    ] = "1G",
    dtype: Annotated[
        str,
        typer.Option(
            "-d", "--dtype", metavar="TYPE", help="Send elements of this type: float32, float64, float16 or bfloat16."
        ),
    ] = "float32",
    device: Annotated[
        str,
        typer.Option(
            metavar="cpu|cuda",
            help="Keep the workers' parameters in the memory of this device; the server's are always in host memory.",
        ),
    ] = "cpu",
    path: Annotated[
        str | None,
        typer.Option(
            metavar="PATH,...",
            help="Send GPU memory over these paths: staged, aware or nccl. [default: all that a back end supports]",
        ),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Start each variant this many times, interleaved; confidence intervals are computed over the starts.",
            **limits(Repeats),
        ),
    ] = 3,
    iterations: Annotated[
        int, typer.Option("-n", "--iterations", metavar="N", help="Time this many calls per start.", **limits(Count))
    ] = 10,
    warmup: Annotated[
        int,
        typer.Option(
            "-w",
            "--warmup",
            metavar="N",
            help="Make this many untimed warm-up calls before the timed calls.",
            **limits(CountOrZero),
        ),
    ] = 1,
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Check every element of every result; exit status 4 if one is wrong."),
    ] = True,
    np: Annotated[str | None, typer.Option("-np", "--np", hidden=True)] = None,
    run: Annotated[Path | None, folder_of("measurement")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Compare a parameter server (broadcast, then gather) with all-reduce.

    Measures each library, placement and number of workers.
    `--placement` takes a comma-separated list. In docker:node all ranks share one container unless
    `--ranks-per-container` is given.

    Example: `hvscale bench param-server --workers 1,2,4 --backend openmpi,mpich --placement
    docker:rank,docker:node,host`
    """
    from hvscale.bench.param_server.study import ParamServerOptions, ParamServerStudy

    if np is not None:  # without the option, -np 4 would mean -n p
        raise RequestError(f"-np {np}: give --workers {np}; the server is an additional rank")
    options = ParamServerOptions(
        backends=tuple(backend),
        paths=tuple(path.split(",")) if path is not None else (),
        operations=operation,
        workers=workers,
        size=size,
        dtype=dtype,
        device=device,
        repeats=repeat,
        iterations=iterations,
        warmup=warmup,
        check=check,
    )
    study = ParamServerStudy.of(options, launch_options(context), run, resolve)
    if was_given(context, "mpi"):
        check_mpi(launch_options(context).mpi, [start.options.mpi for start in study.variants.values()])
    from hvscale.bench.param_server.output import tables

    measure_and_print(
        study,
        json,
        csv,
        write_csv=lambda document, path: write_csv(path, document.rows),
        show=lambda document: results().print(*(one.table() for one in tables(document)), sep="\n\n"),
        last=f"bench folder: {study.path}",
        page="plots",
    )
