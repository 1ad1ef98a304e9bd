"""The list of knobs: as a document and a table."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from hvscale.comm_tuning.knobs.library import KnobLibrary, Restart, libraries, of_flavour
from hvscale.comm_tuning.knobs.meaning import MEANING
from hvscale.core.documents import VersionedDocument

if TYPE_CHECKING:
    from rich.table import Table

# Of the table, with their shares of the width.
COLUMNS = {"library": 3, "variable (default)": 8, "values": 6, "read at": 3, "needs": 7, "source": 5}
RESTARTS = {"start": "a fresh start", "init": "hvd.init()"}


class KnobRow(BaseModel):
    """One library's spelling of one knob. `variables`: its variables, or the launch option, with their defaults in the library's words."""

    knob: str
    meaning: str
    library: str
    flavours: list[str] | None
    variables: dict[str, str]
    values: str
    unit: str
    restart: Restart
    transport: str | None
    needs: str
    along: dict[str, str]
    source: str


class KnobsDocument(VersionedDocument):
    """What `hvscale knobs --json` prints."""

    schema_: Literal["hvscale/knobs/1"] = "hvscale/knobs/1"
    rows: list[KnobRow]


def knobs(word: str | None = None) -> KnobsDocument:
    """All knobs, or those that a job with this `--mpi`, or one library, has. Raises RequestError for an unknown word."""
    chosen = libraries() if word is None else of_flavour(word)
    return KnobsDocument(rows=[row for knob in MEANING for library in chosen for row in rows_of(library, knob)])


def rows_of(library: KnobLibrary, knob: str) -> Iterator[KnobRow]:
    for one in library.spellings:
        if one.knob == knob:
            yield KnobRow(
                knob=knob,
                meaning=MEANING[knob],
                library=library.name,
                flavours=list(library.flavours) if library.flavours is not None else None,
                variables=dict(one.variables),
                values=one.values.takes,
                unit=one.unit,
                restart=one.restart,
                transport=one.transport,
                needs=one.needs,
                along=dict(one.along),
                source=one.source,
            )


def knobs_tables(document: KnobsDocument) -> "Iterator[Table]":
    """For each knob a table under its meaning, with a row for each library that has it."""
    from rich.table import Table
    from rich.text import Text

    last, table = "", Table()
    for row in document.rows:
        if row.knob != last:
            if last:
                yield table
            table = Table(box=None, expand=True, pad_edge=False, show_header=not last, header_style="dim")
            title = Text.assemble((row.knob, "bold not italic"), f": {row.meaning}", style="table.title")
            table.title, table.title_justify = title, "left"
            for name, share in COLUMNS.items():
                table.add_column(name, ratio=share, overflow="fold")
            last = row.knob
        variables = (f"{name} ({default})" if default else name for name, default in row.variables.items())
        over = f"messages over {row.transport}" if row.transport else ""
        cells = (
            row.library,
            "\n".join(variables),
            f"{row.values} {row.unit}".strip(),
            RESTARTS[row.restart],
            "; ".join(filter(None, [over, row.needs])),
            row.source,
        )
        table.add_row(*cells)
    if last:
        yield table
