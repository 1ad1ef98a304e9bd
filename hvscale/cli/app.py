"""How commands are made, and the options and arguments that several of them share."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from hvscale.core.errors import RequestError
from hvscale.core.numbers import limits


def new_app(text: str | None = None) -> typer.Typer:
    """Return the Typer app of one command or, with `text` as its help, of a group of commands."""
    app = typer.Typer(
        help=text,
        no_args_is_help=text is not None,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    if text is not None:
        app.callback()(lambda: None)
    return app


def hide_switch_types(command: Any, context: Any) -> None:
    """Remove "<bool>" behind each switch in the help of a command and of its sub-commands."""
    for param in command.get_params(context):
        if getattr(param, "is_flag", False):
            param.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        if inner is not None:
            hide_switch_types(inner, context)


def within(annotation: Any, metadata: tuple[Any, ...] | list[Any] = (), least: float | None = None) -> dict[str, Any]:
    """Arguments for typer.Option that check the bounds of a type in hvscale.core.numbers.

    Typer's own `min` and `max` would add the range to the help. `least` replaces the lower bound.
    """
    bounds = limits(annotation, metadata)
    if not bounds:
        return {}
    low, high = bounds.get("min", -math.inf) if least is None else least, bounds.get("max", math.inf)

    def check(param: typer.CallbackParam, value: Any) -> Any:
        for number in value if isinstance(value, list | tuple) else [value]:
            if number is not None and not low <= number <= high:
                option = max(param.opts, key=len)
                wanted = "it is not a number" if math.isnan(number) else f"give a number from {low:.12g} to {high:.12g}"
                raise RequestError(f"{option} {number}: {wanted}")
        return value

    return {"callback": check}


COMMAND_LAST = {"allow_interspersed_args": False}
Command = Annotated[list[str], typer.Argument(metavar="COMMAND", help="Program to start with its arguments, after --.")]
Bins = Annotated[
    str,
    typer.Option(
        metavar="BINS", help="Message sizes of the rows: study, pow2, or your own upper edges, such as 64K,1M,16M."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Also write the table to a CSV file.")]
Metric = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="Regular expression that finds the throughput in the ranks' output, as for `hvscale scale`.",
    ),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
PerRank = Annotated[bool, typer.Option("--per-rank", help="Also print a row for each rank.")]
Explain = Annotated[
    bool | None,
    typer.Option(
        "--explain/--no-explain",
        help="Also print which rank the others waited for, what Horovod did with its tensors, how much communication was exposed, and how often "
        "buffers were reused. Default: for runs that recorded at most 64 MiB (a million calls).",
    ),
]


def folder_of(what: str) -> Any:
    """`--run` of a command that resumes what it finds there; `what` is the kind of folder, such as
    "study".
    """
    text = f"Folder of the {what}. An interrupted {what} in this folder is resumed. Default: a new folder under runs/."
    return typer.Option("--run", metavar="DIR", help=text)
