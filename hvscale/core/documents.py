"""Versioned documents, and JSON as this package writes and reads it, whatever bytes a command, a
path or a file holds.

Linux's names and arguments are bytes. Python keeps those that are not UTF-8 as lone surrogates,
which JSON can only hold as \\udcNN escapes.
"""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticSerializationError


class VersionedDocument(BaseModel):
    """A document that begins with the name and version of its schema, by alias `schema`.

    A subclass states them: `schema_: Literal["hvscale/scale/2"] = "hvscale/scale/2"`. Another
    version is refused.
    """

    model_config = ConfigDict(populate_by_name=True, alias_generator=lambda field: field.removesuffix("_"))

    schema_: str


Document = TypeVar("Document", bound=BaseModel)


def to_json(document: BaseModel, indent: int | None = 2) -> str:
    """The JSON of a document, by alias; bytes that are not UTF-8 as \\udcNN, which `parse_json`
    reads back.
    """
    try:
        return document.model_dump_json(by_alias=True, indent=indent)
    except PydanticSerializationError:
        return json.dumps(document.model_dump(mode="json", by_alias=True), indent=indent)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def from_json(kind: type[Document], text: str | bytes) -> Document:
    """Read what `to_json` wrote. Raises ValueError, of which pydantic's ValidationError is one, for
    anything else.
    """
    has_bytes = b"\\udc" in text if isinstance(text, bytes) else "\\udc" in text
    return kind.model_validate(parse_json(text), strict=False) if has_bytes else kind.model_validate_json(text)
