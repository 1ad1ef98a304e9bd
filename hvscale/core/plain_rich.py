"""rich consoles and progress columns that print text literally, without interpreting markup.

Functions import this module: at the top, rich would take a third of the start-up time.
"""

import sys
from typing import Any

from rich.console import Console
from rich.progress import Task, TextColumn
from rich.text import Text

from hvscale.core.terminal import printable


class PlainConsole(Console):
    """A console on stdout or stderr; strings, also in tables, are neither markup nor control codes.

    Style text with a Text or the `style` argument.
    """

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, self.file), **options)  # type: ignore[arg-type]


class PlainColumn(TextColumn):
    """A column of a progress bar on stderr; the task's fields in `text` are not markup."""

    def __init__(self, text: str) -> None:
        super().__init__(text, markup=False)

    def render(self, task: Task) -> Text:
        shown = super().render(task)
        shown.plain = printable(shown.plain, sys.stderr)
        return shown
