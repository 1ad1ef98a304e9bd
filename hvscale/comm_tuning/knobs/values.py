"""What a knob can be set to: in the user's words, as a value, and as one library spells it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

Value = bool | int | float | str | tuple[str, ...]

TRUE, FALSE = ("on", "1", "true", "yes", "y"), ("off", "0", "false", "no", "n")
BINARY_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}
SIZE = re.compile(r"([0-9]+)\s*([kmg]?)(?:i?b)?")


class Values(Protocol):
    """The values that a library takes. `parse` and `read` raise ValueError for any other."""

    @property
    def takes(self) -> str:
        """What may be asked for, in words."""

    def parse(self, text: str) -> Value:
        """The value of the user's words."""

    def show(self, value: Value) -> str:
        """The user's words for a value."""

    def write(self, value: Value) -> str:
        """The library's word for a value."""

    def read(self, text: str) -> Value:
        """The value of the library's word."""


@dataclass(frozen=True)
class Switch:
    """On or off."""

    on: str = "1"
    off: str = "0"

    @property
    def takes(self) -> str:
        return "on, off"

    def parse(self, text: str) -> bool:
        word = text.lower()
        if word not in TRUE + FALSE:
            raise ValueError(text)
        return word in TRUE

    def show(self, value: Value) -> str:
        return "on" if value else "off"

    def write(self, value: Value) -> str:
        return self.on if value else self.off

    def read(self, text: str) -> bool:
        if text not in (self.on, self.off):
            raise ValueError(text)
        return text == self.on


@dataclass(frozen=True)
class OneOf:
    """One of some words, each with the library's own for it."""

    words: Mapping[str, str]

    @classmethod
    def of(cls, *words: str) -> "OneOf":
        """Of words that the library uses as they are."""
        return cls({word: word for word in words})

    @property
    def takes(self) -> str:
        return ", ".join(self.words)

    def parse(self, text: str) -> str:
        word = text.lower()
        if word not in self.words:
            raise ValueError(text)
        return word

    def show(self, value: Value) -> str:
        return str(value)

    def write(self, value: Value) -> str:
        return self.words[str(value)]

    def read(self, text: str) -> str:
        for word, theirs in self.words.items():
            if theirs == text:
                return word
        raise ValueError(text)


@dataclass(frozen=True)
class WholeNumber:
    """A whole number from `lowest` to `highest`; None where the library sets no limit."""

    lowest: int = 0
    highest: int | None = None

    @property
    def takes(self) -> str:
        return interval(self.lowest, self.highest)

    def parse(self, text: str) -> int:
        return self.checked(int(text))

    def show(self, value: Value) -> str:
        return str(value)

    def write(self, value: Value) -> str:
        return str(value)

    def read(self, text: str) -> int:
        return self.checked(int(text))

    def checked(self, value: int) -> int:
        if value < self.lowest or (self.highest is not None and value > self.highest):
            raise ValueError(value)
        return value


@dataclass(frozen=True)
class Bytes(WholeNumber):
    """A number of bytes, which may be asked for as 64K, 1M or 2GiB: units of 1024."""

    def parse(self, text: str) -> int:
        match = SIZE.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError(text)
        return self.checked(int(match[1]) << BINARY_UNITS[match[2]])


@dataclass(frozen=True)
class Milliseconds:
    """A time of `lowest` milliseconds or more."""

    lowest: float = 0

    @property
    def takes(self) -> str:
        return interval(self.lowest, None)

    def parse(self, text: str) -> float:
        value = float(text.lower().removesuffix("ms"))
        if not (math.isfinite(value) and value >= self.lowest):
            raise ValueError(text)
        return value

    def show(self, value: Value) -> str:
        return str(value)

    def write(self, value: Value) -> str:
        return str(value)

    def read(self, text: str) -> float:
        return self.parse(text)


@dataclass(frozen=True)
class Names:
    """Names with commas between them, or only one. `known`: the library has no others; `what` they are; `prefix` stands before the list."""

    what: str
    known: tuple[str, ...] | None = None
    several: bool = True
    prefix: str = ""
    pattern: str = r"[A-Za-z0-9][A-Za-z0-9_.:/-]*"

    @property
    def takes(self) -> str:
        many = ", with commas between them" if self.several else ""
        return f"{self.what}{many}" + (f" ({', '.join(self.known)})" if self.known else "")

    def parse(self, text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        strange = [name for name in names if not re.fullmatch(self.pattern, name)]
        unknown = [name for name in names if self.known is not None and name not in self.known]
        twice = len(set(names)) < len(names)
        if strange or unknown or twice or (len(names) > 1 and not self.several):
            raise ValueError(text)
        return names

    def show(self, value: Value) -> str:
        return ",".join(value) if isinstance(value, tuple) else str(value)

    def write(self, value: Value) -> str:
        return self.prefix + self.show(value)

    def read(self, text: str) -> tuple[str, ...]:
        if not text.startswith(self.prefix):
            raise ValueError(text)
        return self.parse(text.removeprefix(self.prefix))


def interval(lowest: float, highest: float | None) -> str:
    return f"{lowest} or more" if highest is None else f"{lowest} to {highest}"
