"""`hvscale bench`: one command per collective, and param-server, app and experiment."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.bench.collectives.backends import check_mpi
from hvscale.bench.collectives.operations import COLLECTIVES, Collective
from hvscale.bench.collectives.request import DEFAULT_ITERATIONS, DEFAULT_WARMUP
from hvscale.cli.app import Csv, Json, new_app
from hvscale.cli.commands import bench_app, bench_experiment, bench_param_server
from hvscale.cli.console import print_document, print_text, print_warning
from hvscale.cli.launch_options import (
    SUBMISSION,
    collectives_hook,
    launch_command,
    launch_options,
    resolve,
    was_given,
)
from hvscale.core.numbers import GrowthFactor, Percent, RootRank, limits
from hvscale.report.csv_file import write_csv

app = new_app("Measure collectives, a parameter server and MPI programs, or repeat a published study.")
app.add_typer(bench_app.app)
app.add_typer(bench_param_server.app)
app.add_typer(bench_experiment.app)

Backends = Annotated[
    list[str],
    typer.Option(
        "--backend",
        metavar="NAME,...",
        help="Measure these libraries; repeatable. Values: mpi (the flavour of --mpi), openmpi, mpich, mvapich2, "
        "intelmpi, gloo, nccl, nccl-openmpi, nccl-mpich (NCCL with ranks started by MPI), horovod (over the flavour "
        "of --mpi), horovod-openmpi, horovod-mpich, horovod-gloo, horovod-nccl. [default: mpi]",
    ),
]
MinBytes = Annotated[
    str | None, typer.Option("-b", "--min-bytes", metavar="SIZE", help="Start at this message size. [default: 4]")
]
MaxBytes = Annotated[
    str | None, typer.Option("-e", "--max-bytes", metavar="SIZE", help="Stop at this message size. [default: 256M]")
]
StepFactor = Annotated[
    float | None,
    typer.Option(
        "-f",
        "--step-factor",
        metavar="FACTOR",
        help="Multiply each size by this factor. [default: 2]",
        **limits(GrowthFactor),
    ),
]
StepBytes = Annotated[
    str | None,
    typer.Option("-i", "--step-bytes", metavar="SIZE", help="Add this to each size, instead of multiplying."),
]
Sizes = Annotated[
    str | None,
    typer.Option(
        metavar="mlbench|SIZE,...",
        help="Measure these sizes instead of -b, -e and -f; mlbench: 80 sizes from 1 to 10^8 elements, evenly spaced "
        "on a logarithmic scale.",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "-d", "--dtype", metavar="TYPE", help="Send elements of this type: float32, float64, float16 or bfloat16."
    ),
]
Device = Annotated[str, typer.Option(metavar="cpu|cuda", help="Keep the messages in the memory of this device.")]
Paths = Annotated[
    str | None,
    typer.Option(
        "--path",
        metavar="staged,aware,nccl",
        help="Send GPU memory over these paths: staged (copied through host memory), aware (by a CUDA-aware MPI) or "
        "nccl (by NCCL). Each back end is measured on the paths it supports. [default: the first one it supports]",
    ),
]
Iterations = Annotated[
    str,
    typer.Option(
        "-n",
        "--iterations",
        metavar="N|SIZE:N,...,N",
        help="Time this many calls; SIZE:N sets the number for sizes up to SIZE.",
    ),
]
Warmup = Annotated[
    str,
    typer.Option(
        "-w", "--warmup", metavar="N|SIZE:N,...,N", help="Make this many untimed warm-up calls before the timed calls."
    ),
]
UntilInterval = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT",
        help="Stop measuring a size once half the width of its 95 % confidence interval is at most this percentage of "
        "the mean, or after -n calls.",
        **limits(Percent),
    ),
]
Root = Annotated[
    int,
    typer.Option(
        "-r",
        "--root",
        metavar="RANK",
        help="Use this root rank for broadcast, reduce and gather; -1: each rank in turn (MPI only).",
        **limits(RootRank),
    ),
]
InPlace = Annotated[
    str,
    typer.Option(
        "--in-place", metavar="both|out|in", help="Measure out of place (two buffers), in place (one), or both."
    ),
]
Check = Annotated[
    bool,
    typer.Option("--check/--no-check", help="Check every element of every result; exit status 4 if one is wrong."),
]
Layout = Annotated[
    str, typer.Option(metavar="nccl-tests|osu", help="Print the columns of nccl-tests or of the OSU benchmarks.")
]


def bench(
    context: typer.Context,
    backend: Backends = [],  # noqa: B006 - Typer copies it
    min_bytes: MinBytes = None,
    max_bytes: MaxBytes = None,
    step_factor: StepFactor = None,
    step_bytes: StepBytes = None,
    sizes: Sizes = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    path: Paths = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
    warmup: Warmup = DEFAULT_WARMUP,
    until_interval: UntilInterval = None,
    root: Root = 0,
    in_place: InPlace = "both",
    check: Check = True,
    layout: Layout = "nccl-tests",
    json: Json = False,
    csv: Csv = None,
) -> None:
    from hvscale.bench.collectives.controller import CollectiveBench, CollectiveOptions
    from hvscale.bench.collectives.output import SizesProgress, check_layout, tables
    from hvscale.launch.options import LaunchHooks

    check_layout(layout)
    options = CollectiveOptions(
        backends=tuple(backend),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        step_factor=step_factor,
        step_bytes=step_bytes,
        sizes=sizes,
        dtype=dtype,
        device=device,
        paths=tuple(path.split(",")) if path is not None else (),
        iterations=iterations,
        warmup=warmup,
        until_interval=until_interval,
        root=root,
        in_place=in_place,
        check=check,
    )
    launch = launch_options(context)
    hooks = LaunchHooks(collectives=collectives_hook(launch))
    measurement = CollectiveBench.of(str(context.command.name), options, launch, resolve, hooks)
    document = measurement.document
    if was_given(context, "mpi"):
        check_mpi(launch.mpi, [entry.flavour for entry in document.backends])
    warn_of_unused_table(launch.collectives, document.collective)
    try:
        with SizesProgress(measurement) as progress:
            measurement.measure(starting=progress.starting, measured=progress.measured, warn=print_warning)
    finally:
        if document.rows:
            plots = f"\nplots: {measurement.page}" if measurement.page.exists() else ""
            print_document(
                document,
                json,
                csv,
                write_csv=lambda document, path: write_csv(path, document.rows),
                show=lambda document: print_text(tables(document, layout)),
                last=f"bench folder: {measurement.path}{plots}",
            )


def warn_of_unused_table(path: Path | None, operation: str) -> None:
    """Print a warning if the table of --collectives says nothing about the measured collective."""
    if path is None:
        return
    from hvscale.comm_tuning.collectives.tables.table import read_table

    table = read_table(path)
    if table.eager_limit_bytes is None and all(rule.operation != operation for rule in table.rule):
        print_warning(f"--collectives {path}: the table has no rule for {operation}, so it changes nothing here")


def add_command(collective: Collective) -> None:
    text = (
        f"Measure {collective.name}: {collective.summary}.\n\nExample: "
        f"`hvscale bench {collective.name} -np 2 --backend openmpi,gloo -e 16M`"
    )
    app.command(collective.name, help=text, cls=launch_command(SUBMISSION, resolved=False))(bench)


for known in COLLECTIVES.all().values():
    add_command(known)
