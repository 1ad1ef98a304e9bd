"""The tables that --help prints: imported only for it, because rich is slow to load."""

import sys
from typing import Any

from rich.table import Table
from rich.text import Text
from typer import rich_utils


class HelpTable(Table):
    """A table that folds long words, and makes other columns narrower than names of options."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*cells, **options)
        for column, cell in zip(self.columns, cells, strict=False):
            column.overflow = "fold"
            if isinstance(cell, Text) and cell.plain.startswith("-"):
                column.no_wrap = True


def print_whole_words() -> None:
    """Let no help text be cut on a narrow terminal; Typer has no setting for it."""
    for module in (rich_utils, sys.modules["rich.columns"]):
        vars(module)["Table"] = HelpTable
