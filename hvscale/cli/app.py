"""How commands are made, and the options and arguments that several of them share."""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hvscale.core.numbers import Count, Repeats, limits


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
    """Remove "<bool>" behind switches, types of arguments and ranges of numbers from the help of a
    command and of its sub-commands, and let it cut no words. The ranges are still checked.
    """
    command.format_help = partial(format_help, command.format_help)
    for param in command.params if context is None else command.get_params(context):
        if getattr(param, "is_flag", False):
            param.metavar = ""
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
            param._usage_display_name = partial(usage_name, param)
        param._get_number_range_help_str = lambda: None  # Typer has no setting for it
    for inner in getattr(command, "commands", {}).values():
        if inner is not None:
            simplify_help(inner, context)


def refuse_empty_paths(command: Any) -> None:
    """Let a command and its sub-commands refuse an empty path, which would mean the working folder:
    in a script, it is a variable that was not set.
    """
    for param in command.params:
        param.process_value = partial(checked_value, param.process_value, param)
    for inner in getattr(command, "commands", {}).values():
        refuse_empty_paths(inner)


def checked_value(of_param: Callable[[Any, Any], Any], param: Any, context: Any, value: Any) -> Any:
    made = of_param(context, value)
    given, paths = (one if isinstance(one, list | tuple) else [one] for one in (value, made))
    if any(text == "" and isinstance(path, Path) for text, path in zip(given, paths, strict=False)):
        raise typer.BadParameter("it is empty: give a path", context, param)
    return made


def usage_name(argument: Any) -> str:
    """An argument in the usage line: without Typer's braces around required ones."""
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return f"{name}..." if argument.nargs != 1 else name


def format_help(of_command: Callable[[Any, Any], None], context: Any, formatter: Any) -> None:
    from hvscale.cli.help_table import print_whole_words

    print_whole_words()
    of_command(context, formatter)


def given_command(context: typer.Context, without: Collection[str]) -> list[str]:
    """The command line of the running command, arguments first, as far as it was given.

    `without`: parameters to leave out, by name.
    """
    arguments: list[str] = []
    options: list[str] = []
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if param.name in without or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[param.name or ""]
        values = [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]
        if param.param_type_name == "argument":
            arguments += values
        elif getattr(param, "is_flag", False):
            options.append(param.opts[0])
        else:
            options += [word for text in values for word in (param.opts[-1], text)]
    # The first word is "-c" in a process that another command started.
    return ["hvscale", *context.command_path.split()[1:], *arguments, *options]


COMMAND_LAST = {"allow_interspersed_args": False}
Command = Annotated[list[str], typer.Argument(metavar="COMMAND", help="Program to start with its arguments, after --.")]
Bins = Annotated[
    str,
    typer.Option(
        metavar="BINS",
        help="Group messages by these sizes: study (bins of the published study), pow2 (powers of two), or upper "
        "edges such as 64K,1M,16M.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON document on stdout; messages go to stderr.")
]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the table to this CSV file too.")]
Repeat = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Start each variant this many times, interleaved; a single start gives no confidence interval.",
        **limits(Repeats),
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="Find the throughput in the ranks' output with this regular expression, as for `hvscale scale`.",
    ),
]
Autotune = Annotated[
    bool,
    typer.Option(
        "--autotune",
        help="Find faster settings while the job trains, in any program that uses horovod.torch, and remember them for its next start.",
    ),
]
AutotuneSteps = Annotated[
    int | None,
    typer.Option(metavar="N", help="Tune for this many steps, with --autotune. [default: 150]", **limits(Count)),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
PerRank = Annotated[
    bool,
    typer.Option(
        "--per-rank",
        help="Add tables by rank, node and local rank, the most costly first; of many ranks only the first 16 rows.",
    ),
]
Ranks = Annotated[
    str | None,
    typer.Option(
        metavar="LIST", help="Write only these ranks to the trace, such as 0,7,32-39. [default: all recorded ranks]"
    ),
]
Explain = Annotated[
    bool | None,
    typer.Option(
        "--explain/--no-explain",
        help="Explain the table: which rank the others waited for, Horovod's activity, exposed communication and "
        "buffer reuse. [default: only for runs with at most 4 GiB of records (67 million calls)]",
    ),
]


def folder_of(what: str) -> Any:
    """Return `--run` of a command that resumes; `what` names its result, such as "study"."""
    text = (
        f"Write the {what} to this folder. An interrupted {what} there is resumed. [default: a new folder under runs/]"
    )
    return typer.Option("--run", metavar="DIR", help=text)
