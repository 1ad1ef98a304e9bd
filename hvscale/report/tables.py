"""Tables in the terminal and on pages."""

from pydantic import BaseModel
from rich import box
from rich.table import Table


class TableModel(BaseModel):
    """A table as text, for the terminal and for pages: rows in groups, each under its heading, if
    it has one.
    """

    title: str
    columns: list[str]
    groups: dict[str, list[list[str]]]
    caption: list[str] = []

    def table(self) -> Table:
        """About 80 columns wide."""
        result = plain_table(self.title, "\n".join(self.caption) or None, *self.columns)
        for heading, rows in self.groups.items():
            if heading:
                result.add_row(heading, style="bold")
            for first, *others in rows:
                result.add_row(f"  {first}" if heading else first, *others)
        return result


def plain_table(title: str | None, caption: str | None, first: str, *columns: str) -> Table:
    """The look of all tables: the first column on the left, figures on the right."""
    result = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    result.add_column(first, no_wrap=True)
    for name in columns:
        result.add_column(name, justify="right", no_wrap=True)
    return result
