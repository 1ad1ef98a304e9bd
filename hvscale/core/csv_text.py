"""CSV files as spreadsheets read them: a name is never a formula."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

# What makes a spreadsheet take a cell for a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """A header and a line for each row. Words that a spreadsheet would take for a formula get an apostrophe in front."""
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
    """Numbers stay as they are, also those that are written as text."""
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
