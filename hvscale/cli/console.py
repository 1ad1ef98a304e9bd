"""How every command prints: results on stdout, messages and progress on stderr. rich is imported
only where it is used, because that takes a third of the start-up time.
"""

import functools
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from pydantic import BaseModel

from hvscale.core.documents import to_json
from hvscale.core.terminal import printable, rank_line

if TYPE_CHECKING:
    from hvscale.core.plain_rich import PlainConsole
    from hvscale.studies.document import StudyDocument

DIM, RED, YELLOW = "2", "31", "33"


@functools.cache
def results() -> "PlainConsole":
    """stdout, for tables."""
    from hvscale.core.plain_rich import PlainConsole

    return PlainConsole()


@functools.cache
def messages() -> "PlainConsole":
    """stderr, for progress bars."""
    from hvscale.core.plain_rich import PlainConsole

    return PlainConsole(stderr=True)


def working(on: str) -> AbstractContextManager[object]:
    """Show a spinner on a terminal while a command works."""
    return messages().status(on) if sys.stderr.isatty() else nullcontext()


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print a table with figures right-aligned and words left-aligned."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for number, column in enumerate(columns):
        figures = any(row[number][:1].isdigit() for row in rows)
        table.add_column(column, justify="right" if figures and number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    results().print(table)


def print_json(document: "BaseModel | StudyDocument") -> None:
    print(to_json(document))


def say(text: str, code: str = "") -> None:
    """Print a line on stderr; `code` is its colour on a terminal."""
    text = printable(text, sys.stderr)
    coloured = code and sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(f"\x1b[{code}m{text}\x1b[0m" if coloured else text, file=sys.stderr, flush=True)


def print_message(text: str) -> None:
    say(text, DIM)


def print_warning(text: str) -> None:
    say(f"hvscale: warning: {text}", YELLOW)


def print_error(text: str, exit_status: int) -> int:
    say(f"hvscale: {text}", RED)
    return exit_status


def print_rank_line(rank: int, line: str) -> None:
    print(f"[{rank}] {rank_line(line, sys.stdout)}", flush=True)


def print_rank_line_aside(rank: int, line: str) -> None:
    print(f"[{rank}] {rank_line(line, sys.stderr)}", file=sys.stderr, flush=True)


def print_last_lines(lines: list[str]) -> None:
    """Print the last lines of a failed rank."""
    for line in lines:
        print(f"    {rank_line(line, sys.stderr)}", file=sys.stderr, flush=True)


def print_text(text: str) -> None:
    """Print a result that is already text."""
    print(printable(text, sys.stdout))
