"""The command `hvscale`: parses and prints, decides nothing. Heavy imports stand inside the commands, so that --help is quick."""

import functools
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hvscale import __version__
from hvscale.commands import cleanup, data, evaluation, image, models, tuning
from hvscale.commands.console import print_error, print_json, print_message, print_warning, results, say, working
from hvscale.commands.options import COMMAND_LAST, Bins, Command, Csv, Json, options_of
from hvscale.errors import HvscaleError, RankFailedError
from hvscale.launch_options import RunPath, takes_launch_options
from hvscale.trainer.config import TrainConfig

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(
    name="hvscale",
    help="Makes data-parallel training over Horovod scale: train a model, launch any command on N ranks, see where its communication time goes.",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


STOPPED_BY_CTRL_C = 128 + signal.SIGINT  # what Typer makes of it
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
PerRank = Annotated[bool, typer.Option("--per-rank", help="One table row for each rank as well.")]
Explain = Annotated[
    bool | None,
    typer.Option(
        "--explain/--no-explain",
        help="Also say which rank the others waited for, what Horovod did with its tensors, how much of a step communication was exposed, and "
        "how often buffers come again. By default where a run has recorded 64 MiB at most (a million calls).",
    ),
]


@app.callback(invoke_without_command=True)
def hvscale(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def doctor(json: Json = False) -> None:
    """Say what is installed, what works, and how to mend what does not.

    Example: `hvscale doctor`
    """
    from hvscale.doctor import Report, examine

    with working("looking around"):
        checks = list(examine())
    if json:
        return print_json(Report(checks=checks))
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for check in checks:
        table.add_row(
            "[green]good[/]" if check.good else "[red]bad[/]",
            check.name,
            check.found if check.good else f"{check.found}\n-> {check.mend}",
        )
    results().print(table)
    return None


@app.command()
def demo(run: RunPath = None) -> None:
    """Train a small EDSR on two ranks, measure it on a photo it has not seen, and show where its communication time went.

    Example: `hvscale demo`
    """
    from hvscale.demo import demo
    from hvscale.profiling.report import report_path, write_report
    from hvscale.run_folder import RunFolder
    from hvscale.trainer.progress import Bar

    print_message("training a small EDSR x2 on the bundled photos, two Horovod ranks over Open MPI, about a minute")
    if sys.stderr.isatty():
        with Bar() as bar:
            done = demo(run_path=run, warn=print_warning, watch=lambda running: bar.follow(running.steps))
    else:
        done = demo(run_path=run, warn=print_warning, show=print_rank_line)
    results().print(f"\n{done.training.summary()}\n", highlight=False, soft_wrap=True)
    print_breakdown(done.communication)
    folder = RunFolder.open(done.training.run)
    with working("writing the report"):
        write_report([folder], report_path([folder]))
    results().print(
        f"\nrun folder: {folder.path}\npicture:    {done.training.picture}\nreport:     {report_path([folder])}",
        highlight=False,
        soft_wrap=True,
    )


@app.command(context_settings=COMMAND_LAST)
@takes_launch_options
def launch(command: Command, launch_options: dict[str, Any]) -> None:
    """Start a command on N ranks, keep each rank's output, and leave nothing behind.

    Example: `hvscale launch -np 2 -- python train.py`
    """
    from hvscale.launch import launch

    finished = launch(command=command, **launch_options, show=print_rank_line, warn=print_warning)
    print_message(f"run folder: {finished.path}")


@app.command(context_settings=COMMAND_LAST)
@takes_launch_options
def profile(
    command: Command,
    launch_options: dict[str, Any],
    timeline: Annotated[
        bool,
        typer.Option(
            "--timeline",
            help="Have Horovod write its timeline under MPI, too: it tells negotiation, queueing and copies. Under Gloo it always does.",
        ),
    ] = False,
    bins: Bins = "study",
    per_rank: PerRank = False,
    explain: Explain = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Launch a command, record its collectives, and print where the time went by message size. The command needs no change.

    Example: `hvscale profile -np 2 -- python train.py`
    """
    from hvscale.profiled_launch import profiled_launch
    from hvscale.profiling.bins import parse_bins
    from hvscale.profiling.explanation import explained_breakdown

    parse_bins(bins)  # a mistake here is to be known before the job, not after it
    show = print_rank_line_aside if json else print_rank_line
    finished = profiled_launch(command=command, timeline=timeline, **launch_options, show=show, warn=print_warning)
    print_breakdown(explained_breakdown(finished, bins, explain), per_rank, json, csv, unasked=explain is None)
    print_message(f"run folder: {finished.path}")


@app.command()
def breakdown(
    run: RunArgument,
    bins: Bins = "study",
    per_rank: PerRank = False,
    explain: Explain = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Print where the communication time of a recorded run went, by message size, and what explains it.

    Example: `hvscale breakdown runs/20261121T001530Z-train --bins pow2`
    """
    from hvscale.profiling.explanation import explained_breakdown
    from hvscale.run_folder import RunFolder

    table = explained_breakdown(RunFolder.open(run), bins, explain)
    print_breakdown(table, per_rank, json, csv, unasked=explain is None)


@app.command()
def compare(before: RunArgument, after: RunArgument, bins: Bins = "study", json: Json = False, csv: Csv = None) -> None:
    """Compare two runs of the same work by message size: time before, time after, and the gain with its confidence interval.

    Example: `hvscale compare runs/default runs/tuned`
    """
    from hvscale.profiling.compare import compare
    from hvscale.profiling.compare_output import comparison_table, write_comparison_csv
    from hvscale.run_folder import RunFolder

    with working("comparing"):
        comparison = compare(RunFolder.open(before), RunFolder.open(after), bins)
    print_document(comparison, [comparison_table(comparison)], write_comparison_csv, json, csv)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="The folder of a run, or of two: before, after.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where to write the page; by default report.html (of two: comparison.html) in the last RUN.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write a trace of the run, for ui.perfetto.dev: all ranks on one clock."
        ),
    ] = None,
    bins: Bins = "study",
) -> None:
    """Write one HTML page, which works offline: where a run's communication time went, or what two runs differ in.

    Example: `hvscale report runs/default runs/tuned`
    """
    from hvscale.profiling.report import report_path, write_report
    from hvscale.profiling.trace import write_trace
    from hvscale.run_folder import RunFolder

    folders = [RunFolder.open(run) for run in runs]
    page = output or report_path(folders)
    with working("writing the report"):
        write_report(folders, page, bins)
        left_out = write_trace(folders[-1], trace) if trace is not None else None
    if left_out is not None:
        print_warning(left_out)
    print_message(f"report: {page}")


@app.command(context_settings=COMMAND_LAST)
@functools.partial(takes_launch_options, without=("np", "run", "sbatch", "submit", "sbatch_option"))
def scale(
    command: Command,
    launch_options: dict[str, Any],
    np: Annotated[
        str, typer.Option("-np", "--np", metavar="N,N,...", help="Numbers of ranks to measure, such as 1,2,4.")
    ],
    repeat: Annotated[
        int, typer.Option(metavar="N", help="Fresh starts on each number of ranks, in turns; one tells no interval.")
    ] = 3,
    strong: Annotated[
        bool,
        typer.Option(
            "--strong/--weak",
            help="Strong: all ranks together do the same work on any np; in COMMAND {np} stands for np and {64/np} for a rank's share. "
            "Weak: each rank does.",
        ),
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Finds the throughput in the ranks' output: the group `per_rank` is each rank's own, `total` or the first that of all together. "
            "Not needed for hvscale train, and where Horovod's `Total img/sec` is printed.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="The folder of the measurement; one that was broken off is gone on with. By default a new one under runs/.",
        ),
    ] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Measure how a command scales: throughput, speed-up and scaling efficiency on each number of ranks, with confidence intervals.

    Example: `hvscale scale --np 1,2,4 -- hvscale train edsr-baseline --steps 100 --threads 1`
    """
    from hvscale.scaling.output import RunsShown, scaling_table, write_scaling_csv
    from hvscale.scaling.study import Study

    study = Study.of(
        command,
        ranks=np,
        repeats=repeat,
        scaling="strong" if strong else "weak",
        metric=metric,
        path=run,
        **launch_options,
    )
    document = study.document
    try:
        with RunsShown(document) as shown:
            study.measure(starting=shown.starting, measured=shown.measured, warn=print_warning)
    finally:
        if document.rows:
            if csv is not None:
                write_scaling_csv(document, csv)
            if json:
                print_json(document)
            else:
                results().print(scaling_table(document))
            print_message(f"scale folder: {study.path}\nplot: {study.page}")


@app.command()
@options_of(TrainConfig, argument="model")
def train(**options: Any) -> None:
    """Train a model: alone, under `hvscale launch`, or under plain horovodrun, mpirun or srun.

    Example: `hvscale launch -np 2 -- hvscale train edsr-baseline --scale 2 --seconds 60`
    """
    from hvscale import trainer

    trainer.train(TrainConfig.of(**options))


app.command()(tuning.knobs)
app.command("compare-settings")(tuning.compare_settings)
app.command(context_settings=COMMAND_LAST)(tuning.tune)
app.command()(models.models)
app.add_typer(data.app, name="data")
app.command("eval")(evaluation.evaluate)
app.command()(evaluation.upscale)
app.command()(cleanup.cleanup)
app.add_typer(image.app, name="image")


def print_breakdown(
    breakdown: Any, per_rank: bool = False, json: bool = False, csv: Path | None = None, unasked: bool = True
) -> None:
    """`unasked`: whether to explain the table was left to the size of the run."""
    from hvscale.profiling import point_to_point_table, table, write_csv
    from hvscale.profiling.explanation_output import explanation_tables

    shown = [
        table(breakdown),
        *([table(breakdown, per_rank=True)] if per_rank else []),
        *([point_to_point_table(breakdown)] if breakdown.point_to_point else []),
        *explanation_tables(breakdown),
    ]
    print_document(breakdown, shown, write_csv, json, csv)
    if unasked and not breakdown.explained:
        print_message("a large run, so nothing is said beyond its table: --explain does")


def print_document(
    document: Any, shown: "Iterable[RenderableType]", write: Callable[[Any, Path], None], json: bool, csv: Path | None
) -> None:
    """A document with `warnings`: as tables or as JSON, and as CSV too where a file is given."""
    for text in document.warnings:
        print_warning(text)
    if csv is not None:
        write(document, csv)
    if json:
        print_json(document)
        return
    for table in shown:
        results().print(table)


def print_rank_line(rank: int, line: str) -> None:
    print(f"[{rank}] {line}", flush=True)


def print_rank_line_aside(rank: int, line: str) -> None:
    print(f"[{rank}] {line}", file=sys.stderr, flush=True)


def main() -> None:
    """The console script: every expected failure is one line on stderr and its exit status."""
    try:
        status = app(standalone_mode=False)
        if status == STOPPED_BY_CTRL_C:
            print_error("stopped by Ctrl-C", status)
    except typer.TyperException as error:
        status = print_error(error.format_message(), error.exit_code)
    except HvscaleError as error:
        status = print_error(str(error), error.exit_status)
        if isinstance(error, RankFailedError):
            for line in error.last_lines:
                say(f"    {line}")
    sys.exit(status)
