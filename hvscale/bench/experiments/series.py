"""Series of an experiment: times by round under the keys they were measured with, and selectors
that pick among them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hvscale.bench.collectives.sizes import parse_size
from hvscale.core.errors import RequestError
from hvscale.core.units import human_bytes

# The keys of a series.
Key = Literal[
    "program", "operation", "backend", "collectives", "placement", "flags", "np", "workers", "dtype", "device", "bytes"
]
Value: TypeAlias = int | str
Where = Mapping[Key, Value]
KEYS: tuple[Key, ...] = Key.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Series:
    """`seconds`: by round; series of the same round were interleaved. `average`: the one that the
    measurement's own tables show.
    """

    where: Where
    seconds: Mapping[int, float]
    average: Literal["median", "geometric mean"]


class ValueRange(BaseModel):
    """A range, both ends included."""

    model_config = ConfigDict(extra="forbid")

    from_: Annotated[Value | None, Field(alias="from")] = None
    to: Value | None = None


def in_numbers(asked: "dict[Key, Value | list[Value] | ValueRange]") -> "dict[Key, Value | list[Value] | ValueRange]":
    """The selector with sizes as numbers of bytes. Raises ValueError for an invalid size."""
    found: dict[Key, Value | list[Value] | ValueRange] = {}
    for key, value in asked.items():
        if isinstance(value, ValueRange):
            found[key] = ValueRange.model_validate({"from": number(key, value.from_), "to": number(key, value.to)})
        else:
            found[key] = [as_key(key, one) for one in value] if isinstance(value, list) else as_key(key, value)
    return found


def number(key: Key, value: Value | None) -> int | None:
    """An end of a range."""
    if value is None:
        return None
    found = as_key(key, value)
    if not isinstance(found, int):
        raise ValueError(f"{key} = {value!r} is not a number")
    return found


def as_key(key: Key, value: Value) -> Value:
    if key != "bytes" or isinstance(value, int):
        return value
    try:
        return parse_size(key, value)
    except RequestError as error:
        raise ValueError(str(error)) from error


Bytes = Annotated[Value, AfterValidator(lambda value: as_key("bytes", value))]
# For each key a value, a list of which one must match, or a range; other keys may be anything.
Selector = Annotated[dict[Key, Value | list[Value] | ValueRange], AfterValidator(in_numbers)]


def matches(where: Where, selector: Selector) -> bool:
    return all(key in where and value_matches(where[key], asked) for key, asked in selector.items())


def value_matches(value: Value, asked: Value | list[Value] | ValueRange) -> bool:
    if isinstance(asked, ValueRange):
        ends = (asked.from_, asked.to)
        low, high = (end if isinstance(end, int) else None for end in ends)
        return isinstance(value, int) and (low is None or low <= value) and (high is None or value <= high)
    return value in asked if isinstance(asked, list) else value == asked


def selected(series: Iterable[Series], *selectors: Selector) -> list[Series]:
    """The series that match all selectors."""
    return [one for one in series if all(matches(one.where, selector) for selector in selectors)]


def describe(where: Where, keys: Iterable[Key]) -> str:
    """The values of some keys in words."""
    return ", ".join(word(key, where[key]) for key in KEYS if key in keys and key in where)


def word(key: Key, value: Value) -> str:
    if key == "bytes" and isinstance(value, int):
        return human_bytes(value)
    return f"{key} {value}" if key in ("np", "workers") else str(value) or f"no {key}"
