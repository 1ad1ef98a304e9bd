"""The command `hvscale`. Each sub-command is a file in commands/, loaded when it is called."""

import errno
import gc
import importlib
import io
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from hvscale.cli.app import refuse_empty_paths, simplify_help
from hvscale.cli.console import print_error, print_last_lines
from hvscale.cli.interrupts import repeat_lost_interrupts
from hvscale.core.errors import HvscaleError, RankFailedError, RequestError

# The panels of --help, and the commands of each, in the order shown.
PANELS = {
    "Start here": ("doctor", "demo"),
    "Run and profile": ("launch", "profile", "watch", "breakdown", "compare", "report", "trace", "runs"),
    "Tune": ("tune", "tune-collectives", "settings", "knobs"),
    "Measure": ("scale", "compare-settings", "compare-placements", "bench"),
    "Predict": ("replay", "predict"),
    "Train": ("train", "eval", "upscale", "models", "data"),
    "Tools": ("check-gpu", "cleanup", "image"),
}
PANEL_OF = {command: panel for panel, commands in PANELS.items() for command in commands}
SYMLINK_LOOP = "Symlink loop from"  # of Path.resolve before Python 3.13; later it is an OSError
# Errors of a path that a user or a file named.
UNUSABLE_PATH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS, errno.ESTALE)
NOBODY_READS = 128 + signal.SIGPIPE  # what shells show for a program that the signal ends
STOPPED_BY_CTRL_C = 128 + signal.SIGINT  # the status that Typer returns for it


class Commands(TyperGroup):
    """Loads only the command that is called: the options of all commands take 50 ms to build."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(PANEL_OF)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in PANEL_OF and self.commands[cmd_name] is None:
            module = importlib.import_module(f"hvscale.cli.commands.{cmd_name.replace('-', '_')}")
            self.commands[cmd_name] = get_command(module.app)
            self.commands[cmd_name].name = cmd_name
            self.commands[cmd_name].rich_help_panel = PANEL_OF[cmd_name]
            simplify_help(self.commands[cmd_name], ctx)
            refuse_empty_paths(self.commands[cmd_name])
            gc.freeze()  # no later collection looks at the modules
            gc.set_threshold(50_000)
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        simplify_help(self, ctx)
        super().format_help(ctx, formatter)


app = typer.Typer(
    cls=Commands,
    name="hvscale",
    help="Make data-parallel training over Horovod scale: launch any command on N ranks, see where its communication time goes, find faster "
    "settings and prove the gain.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback(invoke_without_command=True)
def hvscale(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from hvscale import __version__

        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


def usage_message(error: typer.TyperException) -> str:
    """What is wrong with the command line, naming an invalid value; empty where a group's help was
    shown instead.
    """
    param, errors = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if param is None or errors is None:  # not an error of pydantic, which is not imported for this
        return error.format_message()
    problem = errors()[0]
    value, kind = problem["input"], problem["type"]
    problems = {"int_parsing": "it is not a whole number", "float_parsing": "it is not a number"}
    if kind in ("greater_than_equal", "less_than_equal"):
        text = "it is not a number" if value == "nan" else f"give a number from {param.min:.12g} to {param.max:.12g}"
    else:
        text = problems.get(kind, problem["msg"].lower())
    return f"{max(param.opts, key=len)} {value}: {text}"


def has_working_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def print_os_error(error: OSError) -> int:
    """Print a line about an error that any command may meet, and return the exit status.

    Raises all other errors.
    """
    if isinstance(error, FileNotFoundError) and not has_working_folder():
        return print_error("the working folder was deleted: change to another folder", RequestError.exit_status)
    if error.errno in UNUSABLE_PATH and error.filename is not None:
        path = os.fsdecode(error.filename)
        return print_error(f"{path}: {error.strerror}: give another path", RequestError.exit_status)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise error
    if error.filename is None:  # Python would try to write the rest once more at its end
        discard_output(1)
    return print_error(
        f"no space left for {error.filename or 'the output'}: free some, or write to another disk",
        RequestError.exit_status,
    )


def open_standard_streams() -> None:
    """Open those that the parent process has closed. What is printed there is lost."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def set_home() -> None:
    """Set HOME to this user's folder, or to / for a user without one, if it is not set.

    Services start programs without HOME, and Open MPI's programs do not run without it.
    """
    if "HOME" not in os.environ:
        home = os.path.expanduser("~")  # noqa: PTH111 - Path.expanduser raises for an unknown user
        os.environ["HOME"] = home if home != "~" else "/"


def discard_output(*streams: int) -> None:
    """Let what is still printed to these file descriptors vanish."""
    for number in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def run_command() -> int | None:
    """Run the command; return its exit status. Every expected failure is one line on stderr."""
    try:
        status: int | None = app(standalone_mode=False)
        if status == STOPPED_BY_CTRL_C:
            print_error("stopped by Ctrl-C", STOPPED_BY_CTRL_C)
        sys.stdout.flush()
    except typer.TyperException as error:
        text = usage_message(error)
        status = print_error(text, error.exit_code) if text else error.exit_code
    except HvscaleError as error:
        status = print_error(str(error), error.exit_status)
        if isinstance(error, RankFailedError):
            print_last_lines(error.last_lines)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # Typer and rich end the process for it
            raise error.__context__ from None
        raise
    except OSError as error:
        status = print_os_error(error)
    except RuntimeError as error:
        if not str(error).startswith(SYMLINK_LOOP):
            raise
        status = print_error(f"{error}: give another path", RequestError.exit_status)
    return status


def main() -> None:
    """The console script."""
    open_standard_streams()
    # Like stderr: bytes of a name that are not UTF-8 are shown as \\udcNN.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    set_home()
    repeat_lost_interrupts()
    try:
        status = run_command()
    except BrokenPipeError:
        discard_output(1, 2)  # Python writes the rest once more at its end
        status = NOBODY_READS
    finally:
        # Python collects garbage among all modules once more at its end, which takes a tenth of a
        # start. Not with Triton, which torch.compile uses: it reports objects that are not
        # collected as leaks.
        if "triton" not in sys.modules:
            gc.freeze()
    sys.exit(status)
