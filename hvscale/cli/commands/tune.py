"""`hvscale tune`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import COMMAND_LAST, Csv, Json, folder_of, new_app
from hvscale.cli.console import print_document, print_warning, results
from hvscale.cli.launch_options import KNOBS, OF_ONE_JOB, launch_command, launch_options, was_given
from hvscale.cli.predicted_tune import refuse_options, tune_for_size
from hvscale.core.errors import RequestError
from hvscale.core.numbers import Count, Minutes, Ranks, Repeats, Seconds, SmallCount, limits
from hvscale.report.csv_file import write_csv

app = new_app()
OF_TRIALS = ("trials", "minutes", "knobs", "metric", "first_step_timeout", "trial_seconds")


@app.command(context_settings=COMMAND_LAST, cls=launch_command((*KNOBS, "run", *OF_ONE_JOB)))
def tune(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="Program to start with its arguments, after --. With --predict-np: the run that recorded gradients, then profiled runs "
            "of the job or of its replay.",
        ),
    ],
    context: typer.Context,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Run this many trials, including those of earlier calls. [default: 40, or unlimited with --minutes]",
            **limits(Count),
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            help="Start no new trial after this many minutes. The proof takes extra time.",
            **limits(Minutes),
        ),
    ] = None,
    knobs: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Search only these knobs. [default: those that the profile suggests]"),
    ] = None,
    fix: Annotated[
        list[str],
        typer.Option(
            metavar="KNOB=VALUE",
            help="Set a knob to this value in every trial, also with the default settings; repeatable.",
        ),
    ] = [],  # noqa: B006 - Typer copies it
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Find the throughput in the ranks' output with this regular expression, as for `hvscale scale`; each "
            "match is one step. [default: steps.jsonl, marked steps or the period of the collectives]",
        ),
    ] = None,
    first_step_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Fail if no step is seen within this time.", **limits(Seconds))
    ] = 300,
    trial_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Limit the steps of a trial to this time; a trial ends earlier once its confidence interval is "
            "narrow.",
            **limits(Seconds),
        ),
    ] = 30,
    pairs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Start the best settings and the defaults this many times each, interleaved, for the proof. "
            "[default: 7, or 5 with --predict-np]",
            **limits(Repeats),
        ),
    ] = None,
    predict_np: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Search a model of a recorded job on N ranks instead of starting trials, and prove the best settings "
            "by replay on -np ranks.",
            **limits(Ranks),
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Use this many steps in each replay (with --predict-np). [default: 30]", **limits(Count)
        ),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Let all predicted ranks share this many cores (with --predict-np). [default: each rank has its own]",
            **limits(SmallCount),
        ),
    ] = None,
    given_settings: Annotated[list[str], typer.Option("--set", "--settings", hidden=True)] = [],  # noqa: B006
    run: Annotated[Path | None, folder_of("study")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Find faster settings and prove the gain, or report that the defaults are best.

    Examples: `hvscale tune -np 2 --minutes 10 -- hvscale train edsr-baseline --threads 1`; `hvscale
    tune --predict-np 512 -np 8 --placement netns --nodes 8 --link 1gbit runs/recorded
    runs/profiled`
    """
    if given_settings:  # as other commands take them
        raise RequestError("tune has no --set and no --settings: --fix KNOB=VALUE sets a knob in every trial")
    given = {name for name in (*OF_TRIALS, "steps", "cores", "np") if was_given(context, name)}
    if predict_np is not None:
        refuse_options(
            sorted(given.intersection(OF_TRIALS)), "without --predict-np: the model is searched, and nothing is tried"
        )
        np, options = launch_options(context).np if "np" in given else None, launch_options(context).replace(run=run)
        tune_for_size(
            command, predict_np, np, options, fix=fix, pairs=pairs, steps=steps, cores=cores, json=json, csv=csv
        )
        return
    refuse_options(sorted(given - {"np", *OF_TRIALS}), "with --predict-np N")
    from hvscale.comm_tuning.tune.request import TuneRequest
    from hvscale.comm_tuning.tune.run import run_study
    from hvscale.comm_tuning.tune.study import TuneStudy
    from hvscale.comm_tuning.tune.terminal import TuneProgressBar, space_table, trial_rows, trials_table, verdict

    request = TuneRequest.of(
        command,
        trials=trials,
        minutes=minutes,
        pairs=7 if pairs is None else pairs,
        knobs=knobs.split(",") if knobs is not None else None,
        fix=fix,
        metric=metric,
        first_step_timeout=first_step_timeout,
        trial_seconds=trial_seconds,
        options=launch_options(context),
    )
    study = TuneStudy(request, run)
    try:
        with TuneProgressBar(study) as progress:
            run_study(study, progress, print_warning)
    finally:
        document = study.document
        if document.trials:
            guide = study.path / "guide.html"
            print_document(
                document,
                json,
                csv,
                write_csv=lambda document, path: write_csv(path, trial_rows(document)),
                show=lambda document: results().print(
                    space_table(document), trials_table(document), verdict(document), sep="\n\n", highlight=False
                ),
                last=f"study folder: {study.path}" + (f"\nguide: {guide}" if guide.exists() else ""),
            )
