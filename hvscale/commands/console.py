"""How every command writes: results on stdout, messages and progress on stderr."""

import csv
import io
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.table import Table

from hvscale.errors import RequestError
from hvscale.run_folder import write_atomically

results = Console()
messages = Console(stderr=True)


def working(on: str) -> AbstractContextManager[object]:
    """Shows that a command is at work, where somebody watches."""
    return messages.status(on) if messages.is_terminal else nullcontext()


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """A column of figures to the right, of words to the left."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for number, column in enumerate(columns):
        figures = any(row[number][:1].isdigit() for row in rows)
        table.add_column(column, justify="right" if figures and number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    results.print(table)


def print_json(document: BaseModel) -> None:
    print(document.model_dump_json(by_alias=True, indent=2))


def write_csv(path: Path, rows: Sequence[BaseModel]) -> None:
    """One line for each row, its fields as columns. Raises RequestError when `path` cannot be written."""
    text = io.StringIO()
    documents = [row.model_dump(mode="json") for row in rows]
    writer = csv.DictWriter(text, list(documents[0]) if documents else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(documents)
    try:
        write_atomically(path, lambda stream: stream.write(text.getvalue().encode()))
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def print_message(text: str) -> None:
    messages.print(text, style="dim", highlight=False, soft_wrap=True, markup=False)


def print_warning(text: str) -> None:
    messages.print(f"hvscale: warning: {text}", style="yellow", highlight=False, soft_wrap=True, markup=False)


def print_error(text: str, exit_status: int) -> int:
    messages.print(f"hvscale: {text}", style="red", highlight=False, soft_wrap=True, markup=False)
    return exit_status
