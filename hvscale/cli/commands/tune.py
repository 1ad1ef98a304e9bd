"""`hvscale tune`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import new_app
from hvscale.cli.console import print_json, print_message, print_warning, results
from hvscale.cli.launch_options import KNOBS, OF_ONE_JOB, launch_command, launch_options
from hvscale.cli.options import COMMAND_LAST, Command, Csv, Json, folder_of
from hvscale.core.numbers import Count, Minutes, Repeats, Seconds, limits
from hvscale.report.csv_file import write_csv

app = new_app()


@app.command(context_settings=COMMAND_LAST, cls=launch_command((*KNOBS, "run", *OF_ONE_JOB)))
def tune(
    command: Command,
    context: typer.Context,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Settings to try, those of earlier calls included. [default: 40, or no bound with --minutes]",
            **limits(Count),
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="M", help="Begin no trial after so many minutes. The proof comes on top.", **limits(Minutes)
        ),
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
        float, typer.Option(metavar="SECONDS", help="Give up when no step was seen by then.", **limits(Seconds))
    ] = 300,
    trial_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Steps of one trial at most; fewer when its interval is narrow.", **limits(Seconds)
        ),
    ] = 30,
    pairs: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Fresh starts of the best settings and of the defaults, interleaved, that prove the gain.",
            **limits(Repeats),
        ),
    ] = 7,
    run: Annotated[Path | None, folder_of("study")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Search for settings that make a command faster, and prove the gain, or say that the defaults are best.

    Example: `hvscale tune -np 2 --minutes 10 -- hvscale train edsr-baseline --threads 1`
    """
    from hvscale.comm_tuning.tune.study import TuneStudy
    from hvscale.comm_tuning.tune.tables import TrialProgress, space_table, trial_rows, trials_table, verdict

    study = TuneStudy.of(
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
        options=launch_options(context),
    )
    try:
        with TrialProgress(study) as shown:
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
            guide = study.path / "guide.html"
            print_message(f"study folder: {study.path}" + (f"\nguide: {guide}" if guide.exists() else ""))
