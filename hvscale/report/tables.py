"""Tables in the terminal and on pages."""

from pydantic import BaseModel
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


class TableModel(BaseModel):
    """A table as text, for the terminal and for pages.

    `groups`: rows by the heading above them; "" for rows without a heading.
    """

    title: str
    columns: list[str]
    groups: dict[str, list[list[str]]]
    caption: list[str] = []

    def table(self) -> Table:
        """For the terminal, about 80 columns wide."""
        result = plain_table(self.title, "\n".join(self.caption) or None, *self.columns)
        for heading, rows in self.groups.items():
            if heading:
                result.add_row(heading, style="bold")
            for first, *others in rows:
                result.add_row(f"  {first}" if heading else first, *others)
        return result


class PlainTable(Table):
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


def plain_table(title: str | None, caption: str | None, first: str, *columns: str) -> Table:
    """A table in the house style: first column left-aligned, numbers right-aligned."""
    result = PlainTable(title, caption)
    result.add_column(first, no_wrap=True)
    for name in columns:
        result.add_column(name, justify="right", no_wrap=True)
    return result
