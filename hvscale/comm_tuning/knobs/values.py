"""The values of a knob: as the user types them, in Python, and as one library spells them."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hvscale.core.suggest import nearest_name

Value = bool | int | float | str | tuple[str, ...]

TRUE, FALSE = ("on", "1", "true", "yes", "y"), ("off", "0", "false", "no", "n")
BINARY_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}
SIZE = re.compile(r"([0-9]+)\s*([kmg]?)(?:i?b)?")


class Values(Protocol):
    """The values that a library accepts. `parse` and `read` raise ValueError for any other."""

    @property
    def accepted(self) -> str:
        """Describes the valid values."""

    @property
    def known_words(self) -> tuple[str, ...]:
        """All valid words; empty for numbers and for arbitrary names."""

    def parse(self, text: str) -> Value:
        """Parses a value that the user typed."""

    def show(self, value: Value) -> str:
        """Formats the value as the user types it."""

    def write(self, value: Value) -> str:
        """Formats the value as the library spells it."""

    def read(self, text: str) -> Value:
        """Parses the library's spelling."""


@dataclass(frozen=True)
class Switch:
    """On or off."""

    on: str = "1"
    off: str = "0"

    @property
    def accepted(self) -> str:
        return "on, off"

    @property
    def known_words(self) -> tuple[str, ...]:
        return "on", "off"

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
    """One of several words, each with the library's spelling."""

    words: Mapping[str, str]

    @classmethod
    def of(cls, *words: str) -> "OneOf":
        """Words that the library spells the same way."""
        return cls({word: word for word in words})

    @property
    def accepted(self) -> str:
        return ", ".join(self.words)

    @property
    def known_words(self) -> tuple[str, ...]:
        return tuple(self.words)

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
        for word, spelled in self.words.items():
            if spelled == text:
                return word
        raise ValueError(text)


@dataclass(frozen=True)
class WholeNumber:
    """A whole number from `lowest` to `highest`; None if the library sets no limit."""

    lowest: int = 0
    highest: int | None = None
    known_words: ClassVar[tuple[str, ...]] = ()

    @property
    def accepted(self) -> str:
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
    """A number of bytes, typed as 64K, 1M or 2GiB in units of 1024."""

    def parse(self, text: str) -> int:
        match = SIZE.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError(text)
        return self.checked(int(match[1]) << BINARY_UNITS[match[2]])


@dataclass(frozen=True)
class Milliseconds:
    """A time of at least `lowest` milliseconds."""

    lowest: float = 0
    known_words: ClassVar[tuple[str, ...]] = ()

    @property
    def accepted(self) -> str:
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
    """Names separated by commas, or one name if `several` is False.

    `what`: describes the names. `known`: the valid names, None for any. `prefix`: the library's
    prefix of the list. `alone`: the name that stands for all, and with no other.
    """

    what: str
    known: tuple[str, ...] | None = None
    several: bool = True
    prefix: str = ""
    alone: str = ""
    pattern: str = r"[A-Za-z0-9][A-Za-z0-9_.:/-]*"

    @property
    def accepted(self) -> str:
        many = ", separated by commas" if self.several else ""
        many += f", or {self.alone}" if self.alone else ""
        return f"{self.what}{many}" + (f" ({', '.join(self.known)})" if self.known else "")

    @property
    def known_words(self) -> tuple[str, ...]:
        return self.known or ()

    def parse(self, text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        malformed = [name for name in names if not re.fullmatch(self.pattern, name)]
        unknown = [name for name in names if self.known is not None and name not in self.known]
        repeated = len(set(names)) < len(names)
        many = len(names) > 1
        if malformed or unknown or repeated or (many and (not self.several or self.alone in names)):
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


def nearest_value(text: str, values: Values) -> str | None:
    """The valid value with the spelling closest to `text`; None if none is close."""
    words = values.known_words
    for name in text.split(","):
        if name not in words and (nearest := nearest_name(name, words)) is not None:
            return text.replace(name, nearest)
    return None


def interval(lowest: float, highest: float | None) -> str:
    return f"{lowest} or more" if highest is None else f"{lowest} to {highest}"
