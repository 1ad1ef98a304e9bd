"""Types of numeric options with their bounds, and parsers of sizes and lists of numbers."""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo

from hvscale.core.errors import RequestError

MOST_RANKS = 1_000_000
MOST_BYTES = 2**63 - 1  # the limit of files, messages and a C long
MOST_SIZES = 10_000  # message sizes in one table

Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]  # or nodes
Count = Annotated[int, Field(ge=1, le=10**9)]
CountOrZero = Annotated[int, Field(ge=0, le=10**9)]
Repeats = Annotated[int, Field(ge=1, le=10_000)]  # fresh starts of a whole job
MOST_THREADS = 4096
Threads = Annotated[int, Field(ge=1, le=MOST_THREADS)]
ThreadsOrZero = Annotated[int, Field(ge=0, le=MOST_THREADS)]
SmallCount = Annotated[int, Field(ge=1, le=65_536)]  # pixels, layers, images of a batch
SmallCountOrZero = Annotated[int, Field(ge=0, le=65_536)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Field(ge=0.001, le=1e9)]  # up to 31 years
SecondsOrZero = Annotated[float, Field(ge=0, le=1e9)]
Minutes = Annotated[float, Field(ge=0.001, le=1e7)]
Gigabytes = Annotated[float, Field(ge=1e-6, le=1e9)]
GigabytesOrZero = Annotated[float, Field(ge=0, le=1e9)]
Factor = Annotated[float, Field(ge=1e-30, le=1e30)]
FactorOrZero = Annotated[float, Field(ge=0, le=1e30)]
GrowthFactor = Annotated[float, Field(ge=1.001, le=1e9)]
Percent = Annotated[float, Field(ge=1e-6, le=1000)]
StepSeconds = Annotated[float, Field(ge=1e-9, lt=1e9)]  # in a line that any program may have written
StepImages = Annotated[float, Field(ge=0, le=1e15)]
RootRank = Annotated[int, Field(ge=-1, le=MOST_RANKS - 1)]  # -1: each rank in turn

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# No more digits than 2**63 has: Python refuses to read thousands of them.
SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
WHOLE = re.compile(r"\s*([0-9]{1,19})\s*")


def limits(annotation: Any, metadata: tuple[Any, ...] | list[Any] = ()) -> dict[str, Any]:
    """Return the bounds of a type above, also in `... | None`, as `min` and `max` of typer.Option.

    `metadata`: that of a pydantic field. A Literal of integers has bounds too.
    """
    if get_origin(annotation) is Literal and isinstance(get_args(annotation)[0], int):
        return {"min": min(get_args(annotation)), "max": max(get_args(annotation))}
    found: dict[str, Any] = {}
    for constraint in (*metadata, *_constraints(annotation)):
        if hasattr(constraint, "ge"):
            found["min"] = constraint.ge
        if hasattr(constraint, "le"):
            found["max"] = constraint.le
    if found:
        return found
    inner = (limits(part) for part in get_args(annotation) if get_origin(part) is Literal)
    return next(inner, {})


def _constraints(annotation: Any) -> Iterator[Any]:
    for part in get_args(annotation):
        if isinstance(part, FieldInfo):
            yield from part.metadata
        else:
            yield from _constraints(part)


def read_size(text: str) -> int | None:
    """Return the bytes of `8`, `64K`, `1.5M` or `1GiB`; None if invalid or above `MOST_BYTES`.

    The units are powers of 1024.
    """
    match = SIZE.fullmatch(text.strip())
    size = int(Decimal(match[1]) * UNITS[match[2].upper()]) if match else None
    return size if size is not None and size <= MOST_BYTES else None


def read_whole(text: str, least: int, most: int) -> int | None:
    """Return the whole number in `text`; None if invalid or outside `least` to `most`."""
    match = WHOLE.fullmatch(text)
    return int(match[1]) if match and least <= int(match[1]) <= most else None


def parse_ranks(text: str, option: str = "--np", what: str = "ranks") -> list[int]:
    """Return the numbers of `1,2,4`, in order. Raises RequestError if invalid or given twice."""
    found = []
    for word in text.split(","):
        number = read_whole(word, 1, MOST_RANKS)
        if number is None:
            raise RequestError(
                f"{option} {text}: {word.strip() or 'nothing'!r} is not a number of {what}; write {option} 1,2,4"
            )
        found.append(number)
    twice = sorted({np for np in found if found.count(np) > 1})
    if twice:
        raise RequestError(f"{option} {text}: {twice[0]} is given twice; give it once")
    return found


def parse_rank_list(text: str) -> set[int]:
    """Return the ranks that `0,7,32-39` names. Raises RequestError if it is invalid."""
    chosen: set[int] = set()
    for word in text.split(","):
        first, dash, last = word.partition("-")
        low, high = read_whole(first, 0, MOST_RANKS), read_whole(last if dash else first, 0, MOST_RANKS)
        if low is None or high is None or low > high:
            raise RequestError(
                f"--ranks {text}: {word.strip() or 'nothing'!r} is not a rank or a range of ranks; example: 0,7,32-39"
            )
        chosen.update(range(low, high + 1))
    return chosen


def choose_ranks(text: str | None, recorded: Sequence[int]) -> list[int]:
    """Return those of the `recorded` ranks that `0,7,32-39` names, in ascending order; None: all.

    Raises RequestError if `text` is invalid or names a rank that was not recorded.
    """
    if text is None:
        return list(recorded)
    chosen = parse_rank_list(text)
    unknown = sorted(chosen.difference(recorded))
    if unknown:
        found = f", from {min(recorded)} to {max(recorded)}" if recorded else ""
        raise RequestError(
            f"--ranks {text}: rank {unknown[0]} has no profile; the run recorded {len(recorded)} ranks{found}"
        )
    return sorted(chosen)
