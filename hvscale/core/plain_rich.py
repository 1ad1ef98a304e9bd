"""rich consoles, tables and progress columns that print text literally, without markup.

Functions import this module: at the top, rich would take a third of the start-up time.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress import Task, TextColumn
from rich.table import Table
from rich.text import Text

from hvscale.core.terminal import printable

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


class CaptionedTable(Table):
    """A table with lines above and below it that may be wider than its columns.

    rich would wrap a title and a caption at the width of the columns, which few short rows make
    narrow.
    """

    def __init__(self, title: str | None, caption: str | None) -> None:
        super().__init__(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        self.lines_above = title.split("\n") if title else []
        self.lines_below = caption.split("\n") if caption else []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = Measurement.get(console, options, self).maximum
        for line in self.lines_above:
            yield self._centred(console, line, width, "italic")
        yield from super().__rich_console__(console, options)
        for line in self.lines_below:
            yield self._centred(console, line, width, "dim italic")

    def _centred(self, console: Console, line: str, width: int, style: str) -> Text:
        text = console.render_str(line, style=style)
        text.pad_left(max(0, (width - text.cell_len) // 2))
        return text
