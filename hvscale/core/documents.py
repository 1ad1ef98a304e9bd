"""Versioned documents, and the JSON that this package writes and reads.

File names and arguments on Linux are bytes. Python keeps bytes that are not UTF-8 as lone
surrogates, which JSON can hold only as \\udcNN escapes.
"""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular, read_text


class VersionedDocument(BaseModel):
    """A document that starts with `schema`: the name and version of its schema.

    A subclass defines it: `schema_: Literal["hvscale/scale/2"] = "hvscale/scale/2"`. Validation
    fails for another version.
    """

    model_config = ConfigDict(populate_by_name=True, alias_generator=lambda field: field.removesuffix("_"))

    schema_: str


Document = TypeVar("Document", bound=BaseModel)
SCHEMA = re.compile(rb'\s*\{\s*"schema":\s*"hvscale/[a-z-]+/[0-9]+"')
SCHEMA_BYTES = 256  # a document begins with its schema


def to_json(document: BaseModel, indent: int | None = 2) -> str:
    """Return a document as JSON, by alias; bytes that are not UTF-8 become \\udcNN escapes."""
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
    """Read JSON that `to_json` wrote. Raises ValueError (or its subclass ValidationError) if it is
    invalid.
    """
    has_bytes = b"\\udc" in text if isinstance(text, bytes) else "\\udc" in text
    return kind.model_validate(parse_json(text), strict=False) if has_bytes else kind.model_validate_json(text)


def is_document(path: Path) -> bool:
    """Whether a file begins as one of hvscale's JSON documents. Raises OSError."""
    with open_regular(path) as stream:
        return SCHEMA.match(stream.read(SCHEMA_BYTES)) is not None


def require_no_document(path: Path) -> None:
    """Raises RequestError if an output would replace a document of a run or a study."""
    with suppress(OSError):
        if is_document(path):
            raise RequestError(f"{path} belongs to a run or a study: write to another file")


def read_toml(kind: type[Document], path: Path, name: str, explain: Callable[[ValidationError], str]) -> Document:
    """Read a TOML file. Raises RequestError, which begins with `name`, if it is unreadable or
    invalid; `explain` names the field that is wrong.
    """
    import tomllib  # not needed in ranks

    try:
        return kind.model_validate(tomllib.loads(read_text(path)))
    except OSError as error:
        raise RequestError(f"{name}: {error.strerror}") from error
    except ValidationError as error:
        raise RequestError(f"{name}: {explain(error)}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name} is not valid TOML: {error}") from error


def other_version(kind: type[VersionedDocument], text: str | bytes) -> str | None:
    """Name the hvscale that wrote a document with another version of the schema of `kind`.

    For example "an older hvscale (schema hvscale/scale/1)". None for the same version, another
    schema, and invalid JSON.
    """
    try:
        document = parse_json(text)
    except ValueError:
        return None
    found = document.get("schema") if isinstance(document, dict) else None
    name, _, version = str(found).rpartition("/")
    own_name, _, own_version = str(kind.model_fields["schema_"].default).rpartition("/")
    if name != own_name or version == own_version or not version.isdecimal():
        return None
    return f"{'an older' if int(version) < int(own_version) else 'a newer'} hvscale (schema {found})"
