"""`hvscale predict`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Csv, Json, given_command, new_app
from hvscale.cli.console import print_document, print_text, print_warnings, results, spinner
from hvscale.core.errors import RequestError
from hvscale.core.numbers import Ranks, limits

app = new_app()
# They say where results go, not what is predicted.
OUTPUTS = ("run", "json", "csv", "why")


@app.command()
def predict(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run folders: the job recorded with hvscale profile --gradients, then profiled runs or replays of it on other numbers of ranks.",
        ),
    ],
    np: Annotated[str, typer.Option("-np", "--np", metavar="N,N,...", help="Predict for these numbers of ranks.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KNOB=VALUE",
            help="Predict with this setting: fusion_threshold, cycle_time, cache_capacity or allreduce_algorithm. "
            "[default: as recorded]",
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="RATE", help="Assume this rate of each node's link, such as 10gbit. [default: as measured]"
        ),
    ] = None,
    from_table: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Take the cost of messages from this study of `hvscale bench allreduce` or `hvscale "
            "tune-collectives` too.",
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Take the cost of messages from a documented network, or from a TOML file that describes yours, not "
            "from measured runs.",
        ),
    ] = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(**limits(Ranks), metavar="N", help="Assume this many ranks on each node. [default: as measured]"),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(
            **limits(Ranks),
            metavar="N",
            help="Let all ranks share this many cores, as in a replay on one machine. [default: each rank has its own "
            "core]",
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Show the points of this study of `hvscale scale`, say whether communication explains them, and "
            "replace its scale.html.",
        ),
    ] = None,
    why: Annotated[bool, typer.Option("--why", help="Add a table of what takes the time of a step.")] = False,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="DIR", help="Write the prediction to this folder. [default: a new one under runs/]"
        ),
    ] = None,
    json: Json = False,
    csv: Csv = None,
    check_options: Annotated[bool, typer.Option("--check-options", hidden=True)] = False,
) -> None:
    """Predict the throughput and scaling efficiency of a recorded job on other numbers of ranks.

    Messages cost what they cost in the given runs; an interval says how sure the prediction is.

    Example: `hvscale predict runs/job runs/replay-4 --np 8,64,512 --why`
    """
    from hvscale.core.numbers import parse_ranks
    from hvscale.core.run_folder import RunFolder
    from hvscale.launch.placements._link_shaping import bits_per_second
    from hvscale.prediction.measured_points import add_measured_rows, read_study
    from hvscale.prediction.model.networks import load_network
    from hvscale.prediction.model.tables import table_samples
    from hvscale.prediction.predict import PredictionRequest, first_recorded, predict
    from hvscale.prediction.save import new_folder, save, write_rows
    from hvscale.prediction.tables import checks_table, prediction_table, why_table

    for option, value in (("--link", link), ("--cores", cores), ("--from-table", from_table)):
        if network is not None and value is not None:
            raise RequestError(f"{option} changes measured costs, and --network replaces them: give one of them")
    request = PredictionRequest(
        np=parse_ranks(np),
        set=tuple(set_ or ()),
        bytes_per_second=None if link is None else bits_per_second(link) / 8,
        cores=cores,
        ranks_per_node=ranks_per_node,
        costs=None if network is None else load_network(network, ranks_per_node),
        samples=[one for path in from_table or () for one in table_samples(path)],
    )
    if measured is not None:
        read_study(measured)  # report a mistake before the prediction
    if check_options:  # for an experiment, whose runs do not exist yet
        return
    folders = [RunFolder.open(path) for path in runs]
    with spinner("predicting"):
        document = predict(folders, request)
    if measured is not None:
        add_measured_rows(document, measured, first_recorded(folders))
    document.command = given_command(context, without=OUTPUTS)
    folder = new_folder(run, folders[0])
    save(document, folder, measured)
    print_warnings(document.warnings)

    def show(_: object) -> None:
        results().print(prediction_table(document).table())
        if document.checks:
            results().print(checks_table(document).table())
        if why:
            results().print(why_table(document).table())
        if document.explained is not None:
            print_text(document.explained)

    print_document(document, json, csv, write_csv=write_rows, show=show, last=f"prediction folder: {folder}")
