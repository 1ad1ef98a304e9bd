"""rich consoles, tables and progress columns that print text literally, without markup.

Functions import this module: at the top, rich would take a third of the start-up time.
"""

import os
import sys
from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress import Task, TextColumn
from rich.table import Column, Table
from rich.text import Text

from hvscale.core.terminal import printable

FOLDED = 16  # characters of a column whose words may be folded
WIDTH_OF_FILES = 200  # without a terminal: rich's 80 columns would cut tables in files and pipes


class PlainConsole(Console):
    """A console on stdout or stderr; strings, also in tables, are neither markup nor control codes.

    Style text with a Text or the `style` argument.
    """

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)
        if "COLUMNS" not in os.environ and not any(map(os.isatty, range(3))):
            self.width = WIDTH_OF_FILES

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, self.file), **options)  # type: ignore[arg-type]


class FullScreen(Live):
    """The whole terminal, whose content comes back at the end of the context."""

    def __init__(self, console: PlainConsole) -> None:
        super().__init__(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def show(self, lines: Sequence[RenderableType]) -> None:
        """Show what fits of the lines."""
        self.update(Group(*lines), refresh=True)


class PlainColumn(TextColumn):
    """A column of a progress bar on stderr; the task's fields in `text` are not markup."""

    def __init__(self, text: str) -> None:
        super().__init__(text, markup=False)

    def render(self, task: Task) -> Text:
        shown = super().render(task)
        shown.plain = printable(shown.plain, sys.stderr)
        return shown


def narrowest_width(console: Console, options: ConsoleOptions, column: Column) -> int:
    """The characters that a column needs: for its longest cell, or word if it may be wrapped.

    Words that may be folded need FOLDED at most.
    """
    cells = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
    longest = max(cell.maximum if column.no_wrap else cell.minimum for cell in cells)
    return min(longest, FOLDED) if column.overflow == "fold" else longest


class CaptionedTable(Table):
    """A table with lines above and below it that may be wider than its columns.

    rich would wrap a title and a caption at the width of the columns, which few short rows make
    narrow. It would also cut numbers where the terminal is too narrow: there, the last columns are
    left out and named below.
    """

    def __init__(self, title: str | None, caption: str | None) -> None:
        super().__init__(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        self.lines_above = title.split("\n") if title else []
        self.lines_below = caption.split("\n") if caption else []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = copy(self)
        shown.columns = self._columns_that_fit(console, options)
        left_out = self.columns[len(shown.columns) :]
        width = Measurement.get(console, options, shown).maximum
        for line in self.lines_above:
            yield self._centred(console, line, width, "italic")
        yield from Table.__rich_console__(shown, console, options)
        for line in self.lines_below:
            yield self._centred(console, line, width, "dim italic")
        if left_out:
            names = ", ".join(str(column.header) for column in left_out)
            yield console.render_str(f"a wider terminal also shows: {names}", style="dim")

    def _columns_that_fit(self, console: Console, options: ConsoleOptions) -> list[Column]:
        """The first two columns, and those after them that fit whole."""
        widths = accumulate(
            (narrowest_width(console, options, column) for column in self.columns), lambda a, b: a + 1 + b
        )
        fitting = sum(width <= options.max_width for width in widths)
        return self.columns[: max(2, fitting)]

    def _centred(self, console: Console, line: str, width: int, style: str) -> Text:
        text = console.render_str(line, style=style)
        text.pad_left(max(0, (width - text.cell_len) // 2))
        return text
