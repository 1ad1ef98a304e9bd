"""A table of a study, for people."""

from pydantic import BaseModel
from rich.table import Table

from hvscale.profiling.output import plain_table


class Shown(BaseModel):
    """A table as text, for the terminal and for the page: rows in groups, each under its heading."""

    title: str
    columns: list[str]
    groups: dict[str, list[list[str]]]
    caption: list[str] = []

    def table(self) -> Table:
        """About 80 columns wide."""
        result = plain_table(self.title, "\n".join(self.caption) or None, *self.columns)
        for heading, rows in self.groups.items():
            result.add_row(heading, style="bold")
            for first, *others in rows:
                result.add_row(f"  {first}", *others)
        return result
