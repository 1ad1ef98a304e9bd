"""CSV files that a spreadsheet reads without taking a name for a formula."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import write_text

# A spreadsheet takes a cell that begins with one of these for a formula (OWASP, CSV injection).
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(path: Path, rows: Sequence[BaseModel], columns: Sequence[str] | None = None) -> None:
    """Write a header and a line for each row. `columns`: the fields to write, by default all of the
    first row's.

    Raises RequestError when `path` cannot be written.
    """
    documents = [row.model_dump(mode="json") for row in rows]
    if columns is None:
        columns = list(documents[0]) if documents else []
    try:
        write_text(path, csv_text(columns, documents))
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """A header and a line for each row. Text that a spreadsheet would take for a formula gets an
    apostrophe in front.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
    # csv by itself leaves a carriage return bare, which readers take for the row's end.
    quoting = csv.DictWriter(stream, columns, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for row in rows:
        cells = {name: cell(value) for name, value in row.items()}
        (quoting if any("\r" in str(value) for value in cells.values()) else writer).writerow(cells)
    return stream.getvalue()


def cell(value: object) -> object:
    """A value as it is written. Numbers stay as they are, also those given as text."""
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) and not is_number(text) else text


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
