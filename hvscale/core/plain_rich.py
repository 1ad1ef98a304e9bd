"""rich, where text is text: names that look like markup are shown as they are. All of hvscale's
consoles and progress columns are made here.

Imported where it is used, because rich takes a third of a start.
"""

import sys
from typing import Any

from rich.console import Console
from rich.progress import Task, TextColumn
from rich.text import Text

from hvscale.core.terminal import printable


class PlainConsole(Console):
    """stdout, or stderr. Strings, also those in tables, hold no markup, and steer no terminal; a
    style is given with a Text, or as an argument.
    """

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, self.file), **options)  # type: ignore[arg-type]


class PlainColumn(TextColumn):
    """Of a progress bar on stderr: `text` with the task's own words, none of which is markup."""

    def __init__(self, text: str) -> None:
        super().__init__(text, markup=False)

    def render(self, task: Task) -> Text:
        shown = super().render(task)
        shown.plain = printable(shown.plain, sys.stderr)
        return shown
