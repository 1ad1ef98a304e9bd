"""The list of knobs, as a document and as tables."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from hvscale.comm_tuning.knobs.library import LIBRARIES, MEANING, KnobLibrary, Restart, libraries, libraries_of
from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.core.suggest import suggest_name
from hvscale.launch import flavours

if TYPE_CHECKING:
    from rich.table import Table

# The columns with their shares of the table's width.
COLUMNS = {"library": 3, "variable (default)": 8, "values": 6, "read at": 3, "notes": 7, "source": 5}
RESTARTS = {"start": "a fresh start", "init": "hvd.init(), live", "communicator": "MPI_Init, live"}


class KnobRow(BaseModel):
    """One library's spelling of one knob.

    `variables`: the environment variables, or the launch option, with the library's defaults.
    `live`: the value can change in a running job, as `--autotune` does.
    """

    knob: str
    meaning: str
    library: str
    flavours: list[str] | None
    variables: dict[str, str]
    values: str
    unit: str
    restart: Restart
    live: bool
    transport: str | None
    note: str
    also_set: dict[str, str]
    source: str


class KnobsDocument(VersionedDocument):
    """The document that `hvscale knobs --json` prints."""

    schema_: Literal["hvscale/knobs/3"] = "hvscale/knobs/3"
    rows: list[KnobRow]


def knobs(mpi: str | None = None, word: str | None = None) -> KnobsDocument:
    """Lists knobs and their spellings.

    `mpi`: only the libraries that a job of this flavour may use, or one library. `word`: a knob, or
    a flavour or library as for `mpi`. Raises RequestError, suggesting the nearest name, for an
    unknown name, and if no knob is left.
    """
    chosen, names = libraries() if mpi is None else libraries_of(mpi), list(MEANING)
    if word is not None:
        knob = word.replace("-", "_")
        if knob in MEANING:
            names = [knob]
        elif word in (known := [*MEANING, *sorted({*flavours.names(), *LIBRARIES.names()})]):
            chosen = [library for library in libraries_of(word) if library in chosen]
        else:
            raise RequestError(f"{word}: {suggest_name('knob, library or flavour', word, known)}")
    rows = [row for knob in names for library in chosen for row in rows_of(library, knob)]
    if not rows:
        raise RequestError(f"{word}: not in {mpi}; leave out --mpi")
    return KnobsDocument(rows=rows)


def rows_of(library: KnobLibrary, knob: str) -> Iterator[KnobRow]:
    for one in library.spellings:
        if one.knob == knob:
            yield KnobRow(
                knob=knob,
                meaning=MEANING[knob],
                library=library.name,
                flavours=list(library.flavours) if library.flavours is not None else None,
                variables=dict(one.variables),
                values=one.values.accepted,
                unit=one.unit,
                restart=one.restart,
                live=one.is_live,
                transport=one.transport,
                note=one.note,
                also_set=dict(one.also_set),
                source=one.source,
            )


def knobs_tables(document: KnobsDocument) -> "Iterator[Table]":
    """One table per knob, with its meaning as the title and a row for each library."""
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
        over = f"only over {row.transport}" if row.transport else ""
        cells = (
            row.library,
            "\n".join(variables),
            f"{row.values} {row.unit}".strip(),
            RESTARTS[row.restart],
            "; ".join(filter(None, [over, row.note])),
            row.source,
        )
        table.add_row(*cells)
    if last:
        yield table
