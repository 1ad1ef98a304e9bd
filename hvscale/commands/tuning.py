"""`hvscale knobs`, `hvscale compare-settings` and `hvscale tune`."""

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from hvscale.commands.console import print_json, print_message, print_warning, results, write_csv
from hvscale.commands.options import Bins, Command, Csv, Json
from hvscale.launch_options import takes_launch_options


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


@functools.partial(takes_launch_options, without=("knobs", "sbatch", "submit", "sbatch_option"))
def compare_settings(
    settings: Annotated[
        str,
        typer.Argument(
            metavar="SETTINGS",
            help="Names with commas between them, of mpi, mpi-reg, mpi-opt, nccl; the others are compared with the first.",
        ),
    ],
    command: Command,
    launch_options: dict[str, Any],
    repeat: Annotated[
        int, typer.Option(metavar="N", help="Fresh starts under each settings, in turns; one tells no interval.")
    ] = 3,
    metric: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Finds the throughput in the ranks' output, as for `hvscale scale`."),
    ] = None,
    bins: Bins = "study",
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Run a command under named settings in turns: throughput, gain with its interval, and the profiles side by side.

    Example: `hvscale compare-settings mpi,mpi-reg,mpi-opt -np 2 -- hvscale train edsr-baseline --steps 50 --threads 1`
    """
    from hvscale.comm_tuning.compare_settings import compare_settings as compared
    from hvscale.comm_tuning.compare_settings import settings_rows
    from hvscale.profiling.compare_output import comparison_table
    from hvscale.profiling.output import plain_table

    document = compared(
        settings.split(","),
        command,
        repeats=repeat,
        metric=metric,
        bins=bins,
        launch=launch_options,
        starting=lambda name, number: print_message(f"{name}, start {number} of {repeat}"),
        warn=print_warning,
    )
    print_message(f"folder: {document.folder}")
    if csv is not None:
        write_csv(csv, document.rows)
    if json:
        return print_json(document)
    table = plain_table(
        f"np {document.np}",
        "gain: over the first, with its 95 % interval",
        "settings",
        document.unit or "throughput",
        "gain",
        "interval",
        "",
    )
    for cells in settings_rows(document):
        table.add_row(*cells)
    results().print(table, *map(comparison_table, document.profiles), sep="\n\n")
    return None


@functools.partial(takes_launch_options, without=("knobs", "run", "sbatch", "submit", "sbatch_option"))
def tune(
    command: Command,
    launch_options: dict[str, Any],
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Settings to try, those of earlier calls included. [default: 40, or no bound with --minutes]",
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", help="Begin no trial after so many minutes. The proof comes on top.")
    ] = None,
    knobs: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Search these knobs alone; by default all that the profile gives reason to."
        ),
    ] = None,
    fix: Annotated[
        list[str],
        typer.Option(
            metavar="KNOB=VALUE",
            help="Keep a knob at this value, with the defaults too; can be given again. As --set elsewhere.",
        ),
    ] = [],  # noqa: B006 - Typer copies it
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Finds the throughput in the ranks' output, as for `hvscale scale`; each match is one step. By default steps.jsonl, marked steps "
            "or the period of the collectives tell it.",
        ),
    ] = None,
    first_step_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Give up when no step was seen by then.")
    ] = 300,
    trial_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="Steps of one trial at most; fewer when its interval is narrow.")
    ] = 30,
    pairs: Annotated[
        int,
        typer.Option(
            metavar="N", help="Fresh starts of the best settings, and of the defaults, in turns, that prove the gain."
        ),
    ] = 7,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="The folder of the study; one that was broken off is gone on with. By default a new one under runs/.",
        ),
    ] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Search for settings that make a command faster, and prove the gain, or say that the defaults are best.

    Example: `hvscale tune -np 2 --minutes 10 -- hvscale train edsr-baseline --threads 1`
    """
    from hvscale.comm_tuning.search.output import TrialsShown, space_table, trial_rows, trials_table, verdict
    from hvscale.comm_tuning.search.study import Study

    study = Study.of(
        command,
        trials=trials,
        minutes=minutes,
        pairs=pairs,
        knobs=knobs.split(",") if knobs is not None else None,
        fix=fix,
        metric=metric,
        first_step_timeout=first_step_timeout,
        trial_seconds=trial_seconds,
        path=run,
        options=launch_options,
    )
    try:
        with TrialsShown(study) as shown:
            study.run(shown, print_warning)
    finally:
        document = study.document
        if document.trials:
            if csv is not None:
                write_csv(csv, trial_rows(document))
            if json:
                print_json(document)
            else:
                results().print(
                    space_table(document), trials_table(document), verdict(document), sep="\n\n", highlight=False
                )
            print_message(f"study folder: {study.path}")
