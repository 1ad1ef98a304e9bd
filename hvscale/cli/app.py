"""How commands are made, and the options and arguments that several of them share."""

from pathlib import Path
from typing import Annotated, Any

import typer


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


def simplify_help(command: Any, context: Any) -> None:
    """Remove "<bool>" behind switches and the ranges of numbers from the help of a command and of
    its sub-commands. The ranges are still checked.
    """
    for param in command.params if context is None else command.get_params(context):
        if getattr(param, "is_flag", False):
            param.metavar = ""
        param._get_number_range_help_str = lambda: None  # Typer has no setting for it
    for inner in getattr(command, "commands", {}).values():
        if inner is not None:
            simplify_help(inner, context)


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
