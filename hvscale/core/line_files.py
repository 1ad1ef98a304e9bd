"""Read files with one JSON document per line; damaged lines are skipped and their numbers kept."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple, TypeVar

from hvscale.core.files import LINES_BYTES, open_regular

T = TypeVar("T")

# A line of steps.jsonl has about 250 bytes: a much longer one is damaged.
LONGEST_LINE_BYTES = 1 << 20
NUMBERS_SHOWN = 5


class LineFile(NamedTuple, Generic[T]):
    """`numbers` and `values` of the valid lines, and the numbers of damaged ones, from 1."""

    numbers: list[int]
    values: list[T]
    damaged: list[int]


def read_lines(path: Path, parse: Callable[[bytes], T], *, unfinished: bool = False) -> LineFile[T]:
    """Read the whole file; `parse` raises ValueError for a damaged line. Blank lines are skipped.

    `unfinished`: also read a last line without a newline, left by a killed process. By default it
    is skipped, because another process may still write it. Raises OSError if the file cannot be
    read.
    """
    found: LineFile[T] = LineFile([], [], [])
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > LINES_BYTES:
            raise OSError(errno.EFBIG, f"larger than {LINES_BYTES >> 20} MiB", str(path))
        number = 0
        while line := stream.readline(LONGEST_LINE_BYTES):
            number += 1
            if len(line) == LONGEST_LINE_BYTES:
                _skip_to_end(stream, line)
                found.damaged.append(number)
                continue
            if not line.strip() or not (unfinished or line.endswith(b"\n")):
                continue
            try:
                value = parse(line)
            except ValueError:
                found.damaged.append(number)
            else:
                found.numbers.append(number)
                found.values.append(value)
    return found


def _skip_to_end(stream: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = stream.readline(LONGEST_LINE_BYTES)


def damaged_lines(path: Path, numbers: list[int]) -> str | None:
    """Return a sentence that names the damaged lines of a file; None if there are none."""
    if not numbers:
        return None
    shown = ", ".join(map(str, numbers[:NUMBERS_SHOWN]))
    if len(numbers) == 1:
        return f"{path}: line {shown} is damaged and was dropped"
    more = f" and {len(numbers) - NUMBERS_SHOWN} more" if len(numbers) > NUMBERS_SHOWN else ""
    return f"{path}: lines {shown}{more} are damaged and were dropped"
