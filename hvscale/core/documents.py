"""JSON as this package writes and reads it, whatever bytes a command, a path or a file holds.

Linux's names and arguments are bytes; Python keeps those that are no UTF-8 as lone surrogates, which JSON can only hold as \\udcNN escapes.
"""

import json
from typing import Any, Protocol, Self, TypeVar

from pydantic_core import PydanticSerializationError


class Readable(Protocol):
    """A pydantic model."""

    @classmethod
    def model_validate(cls, obj: Any, *, strict: bool | None = None) -> Self: ...

    @classmethod
    def model_validate_json(cls, json_data: str | bytes) -> Self: ...


Document = TypeVar("Document", bound=Readable)


def to_json(document: Any, indent: int | None = 2) -> str:
    """A pydantic model with its fields' aliases; bytes that are no UTF-8 as \\udcNN, which `parse_json` gives back."""
    try:
        text: str = document.model_dump_json(by_alias=True, indent=indent)
    except PydanticSerializationError:
        text = json.dumps(document.model_dump(mode="json", by_alias=True), indent=indent)
    return text


def parse_json(text: str | bytes) -> Any:
    """Raises ValueError for what is no JSON, and for what is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def from_json(kind: type[Document], text: str | bytes) -> Document:
    """What `to_json` has written. Raises ValueError, pydantic's ValidationError among them, for anything else."""
    has_bytes = b"\\udc" in text if isinstance(text, bytes) else "\\udc" in text
    return kind.model_validate(parse_json(text), strict=False) if has_bytes else kind.model_validate_json(text)
