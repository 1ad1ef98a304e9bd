"""CSV files in which a spreadsheet takes no text for a formula."""

import csv
import errno
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from pydantic import BaseModel

from hvscale.core.documents import require_no_document
from hvscale.core.errors import RequestError
from hvscale.core.files import is_device
from hvscale.core.run_folder import write_text

# A spreadsheet takes a cell that begins with one of these for a formula (OWASP, CSV injection).
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(path: Path, rows: Sequence[BaseModel], columns: Sequence[str] | None = None) -> None:
    """Write a header and a line for each row.

    `columns`: the fields to write, by default all fields of the first row. Raises RequestError if
    `path` cannot be written, or is one of hvscale's documents.
    """
    require_no_document(path)
    documents = [row.model_dump(mode="json") for row in rows]
    if columns is None:
        columns = list(documents[0]) if documents else []
    try:
        write_text(path, csv_text(columns, documents))
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def require_writable(path: Path) -> None:
    """Raises RequestError if no file can be written at `path`, or it is one of hvscale's documents.

    Changes nothing.
    """
    require_no_document(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_device(path) and os.access(path, os.W_OK):
            return
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """A header and a line for each row; text that looks like a formula gets an apostrophe."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
    # csv does not quote a carriage return, which readers take for the end of the row.
    quoting = csv.DictWriter(stream, columns, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for row in rows:
        cells = {name: cell(value) for name, value in row.items()}
        (quoting if any("\r" in str(value) for value in cells.values()) else writer).writerow(cells)
    return stream.getvalue()


def cell(value: object) -> object:
    """The value of a cell: dicts and lists as JSON. Numbers, also those given as text, stay."""
    if value is None or isinstance(value, int | float):
        return value
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) and not is_number(text) else text


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
