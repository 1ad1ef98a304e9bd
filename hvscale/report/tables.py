"""Tables in the terminal and on pages."""

from pydantic import BaseModel
from rich.table import Table

from hvscale.core.plain_rich import CaptionedTable


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


def plain_table(title: str | None, caption: str | None, first: str, *columns: str) -> Table:
    """A table in the house style: first column left-aligned, numbers right-aligned."""
    result = CaptionedTable(title, caption)
    result.add_column(first, no_wrap=True)
    for name in columns:
        result.add_column(name, justify="right", no_wrap=True)
    return result
