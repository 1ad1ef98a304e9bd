"""The options of every command that starts ranks, in one place. No import of the controller: a rank that shows --help must not load it."""

import functools
import inspect
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from hvscale.core.numbers import Ranks, Seconds, limits
from hvscale.core.terminal import printable
from hvscale.launch import flavours
from hvscale.launch.placement_options import PlacementOptions, metavar_of

Np = Annotated[int, typer.Option("-np", "--np", metavar="N", help="How many ranks to start.", **limits(Ranks))]
Mpi = Annotated[
    str,
    typer.Option("--mpi", metavar="FLAVOUR", help=flavours.mpi_help()),
]
Transport = Annotated[
    str | None,
    typer.Option(
        "--transport",
        metavar="NAME",
        help=flavours.transport_help(),
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        metavar="own|all|split",
        help="GPUs that a rank sees: its own, all, or split: the program its own and the MPI library all.",
    ),
]
Env = Annotated[
    list[str],
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="Pass a variable on to the ranks; the rest of this shell's environment stays here.",
    ),
]
Knobs = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KNOB=VALUE",
        help="Set a knob in the words of every library of the job that has it, such as cuda_ipc=off or fusion_threshold=32M; `hvscale knobs` "
        "lists them.",
    ),
]
Settings = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="A settings.toml, as `hvscale tune` writes it: what it sets, --set and the other options do not.",
    ),
]
CollectivesPath = Annotated[
    Path | None,
    typer.Option(
        "--collectives",
        metavar="TABLE",
        help="Collectives by a decision table: for each number of ranks and message size an own broadcast, or an algorithm of the library.",
    ),
]
RunPath = Annotated[
    Path | None, typer.Option("--run", metavar="DIR", help="The run folder to make; by default a new one under runs/.")
]
StartTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Give up when a rank has not come through MPI_Init or hvd.init() by then. [default: never]",
        **limits(Seconds),
    ),
]

# The switches whose default is not the same everywhere, so that one may want to say no.
WITH_NEGATIVE = ("cma",)


# For `without`: what is not asked of commands that start many jobs, and of those whose jobs are of several kinds.
SUBMISSION = ("sbatch", "submit", "sbatch_option")
OF_ONE_JOB = ("collectives", *SUBMISSION)


def takes_launch_options(
    command: Callable[..., None], without: Collection[str] = (), resolved: bool = True
) -> Callable[..., None]:
    """Decorator: replaces a command's parameter `launch_options` by the options of every command that starts ranks, but for those of `without`.

    The command gets them as keywords for `hvscale.launch.launch`; with `resolved` False as they were given, for `resolve`, because it starts
    several flavours. One without a parameter `command` starts programs of its own.
    """
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != "launch_options"
    ]
    placing = {name: field for name, field in PlacementOptions.model_fields.items() if name not in without}
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, hint, default in [
            ("np", Np, 1),
            ("mpi", Mpi, flavours.DEFAULT),
            ("transport_name", Transport, None),
            ("devices", Devices, "all"),
            ("env", Env, []),
            ("knobs", Knobs, []),
            ("settings", Settings, None),
            ("collectives", CollectivesPath, None),
            ("run", RunPath, None),
            *((name, placement_option(name, field), None) for name, field in placing.items()),
            ("start_timeout", StartTimeout, None),
        ]
        if name not in without and not (name == "settings" and "knobs" in without)
    ]
    renamed = {"run": "run_path"}
    names = [parameter.name for parameter in shared if parameter.name not in placing]

    @functools.wraps(command)
    def with_launch_options(**values: Any) -> None:
        keywords = {renamed.get(name, name): values.pop(name) for name in names}
        keywords["placement"] = PlacementOptions.of(**{name: values.pop(name) for name in placing})
        if not resolved:
            command(launch_options=keywords, **values)
            return
        keywords = resolve(values.get("command", []), keywords)
        if keywords["placement"].sbatch is not None and not keywords["placement"].submit:
            from hvscale.launch.placements._slurm_job import write_job_script

            print(printable(write_job_script(command.__name__, values["command"], **keywords), sys.stdout))
            return
        command(launch_options=keywords, **values)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + shared
    with_launch_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_launch_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_launch_options


def resolve(command: list[str], launch: dict[str, Any]) -> dict[str, Any]:
    """The keywords with what --settings, --set and --collectives ask for in them.

    Raises RequestError for what the job's libraries cannot do, and for a file that is not what it should be.
    """
    return read_collectives(set_knobs(command, read_file(launch)))


def read_file(launch: dict[str, Any]) -> dict[str, Any]:
    """The keywords with what the file of --settings asks for in them, and without the file."""
    keywords = {name: value for name, value in launch.items() if name != "settings"}
    path = launch.get("settings")
    if path is None:
        return keywords
    from hvscale.comm_tuning.knobs.settings_file import with_settings_file

    return with_settings_file(path, keywords)


def read_collectives(launch: dict[str, Any]) -> dict[str, Any]:
    """The keywords with the table in place of its path."""
    path = launch.get("collectives")
    if path is None:
        return launch
    from hvscale.comm_tuning.collectives.launch import Collectives

    return {**launch, "collectives": Collectives.of(path, launch["mpi"])}


def set_knobs(command: list[str], launch: dict[str, Any]) -> dict[str, Any]:
    """The keywords with what --set asks for in them; a job that Slurm is to start sets its knobs where its libraries are."""
    requests = launch.get("knobs")
    if not requests:
        return {**launch, "knobs": {}}
    from hvscale.comm_tuning.knobs.settings import parse, with_settings
    from hvscale.launch.placements._slurm_job import is_inside_an_allocation

    placement = launch["placement"]
    if placement.sbatch is not None or (placement.submit and not is_inside_an_allocation()):
        return {**launch, "knobs": {setting.knob: setting.text for setting in parse(requests)}}
    return with_settings(requests, command, launch)


def placement_option(name: str, field: FieldInfo) -> Any:
    """The command line's form of one field of PlacementOptions, whose annotation is `a type | None`."""
    kind = next(one for one in get_args(field.annotation) if one is not NoneType)
    if get_origin(kind) is Literal:
        kind = str
    elif get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    elif get_origin(kind) is tuple:
        kind = list[get_args(kind)[0]]  # type: ignore[misc]
    words = name.replace("_", "-")
    spelling = f"--{words}/--no-{words}" if name in WITH_NEGATIVE else f"--{words}"
    bounds = limits(field.annotation, field.metadata) if kind in (int, float) else {}
    return Annotated[kind | None, typer.Option(spelling, help=field.description, metavar=metavar_of(field), **bounds)]
