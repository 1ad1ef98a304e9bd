"""The common format of the files of hvprof and its NCCL plug-in: a checked header of 4096 bytes and
a ring of records.
"""

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.numbers import MOST_RANKS

HEADER_BYTES = 4096
CHECKED_BYTES = 4032  # of the header; the rest changes with every record
ODD = 0x9E3779B97F4A7C15
LARGEST = 2**63 - 1


def header_layout(fields: list[tuple[str, Any, int]]) -> np.dtype[Any]:
    """The dtype of a header, of (name, type, offset)."""
    names, formats, offsets = zip(*fields, strict=True)
    return np.dtype(
        {"names": list(names), "formats": list(formats), "offsets": list(offsets), "itemsize": HEADER_BYTES}
    )


def check_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The checksum of each row of `words` (n, k): the sum, modulo 2^64, of every word times an odd
    number of its own.
    """
    factors = (np.arange(words.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)) * np.uint64(ODD)
    checks: NDArray[np.uint64] = words @ factors + np.uint64(ODD)
    return checks


def read_fields(
    path: Path, stream: IO[bytes], layout: np.dtype[Any], magic: bytes, version: int, sizes: dict[str, int], maker: str
) -> Any:
    """The header at the start of `stream`, one value of dtype `layout`, all checked; `sizes`:
    required values of fields.

    Raises RequestError, naming `path`, if it is not the header of a file of this version by
    `maker`.
    """
    raw = stream.read(HEADER_BYTES)
    if raw[: len(magic)] != magic:
        raise RequestError(f"{path} is not a profile that {maker} wrote")
    if len(raw) < HEADER_BYTES:
        raise RequestError(f"{path} is truncated: {len(raw)} bytes are left of a header of {HEADER_BYTES}")
    header = np.frombuffer(raw, layout, count=1)[0]
    found = int(header["version"])
    if found != version:
        remedy = "update hvscale" if found > version else "read it with the hvscale that recorded it"
        raise RequestError(f"{path} has format version {found}; this hvscale reads version {version}: {remedy}")
    checked = np.frombuffer(raw, "<u8", count=CHECKED_BYTES // 8).copy()
    checked[layout.fields["check"][1] // 8] = 0  # type: ignore[index]
    if check_words(checked[None, :])[0] != header["check"]:
        raise RequestError(f"{path} is damaged: its header does not match its checksum")
    if any(header[name] != size for name, size in sizes.items()) or not header["capacity"]:
        raise RequestError(f"{path} is damaged: its header names sizes that version {version} does not have")
    if header["rank"] >= MOST_RANKS or max(header["monotonic_ns"], header["realtime_ns"]) > LARGEST:
        raise RequestError(f"{path} is damaged: its header names a rank or a time that no job has")
    return header


def text(field: Any) -> str:
    """The text of a field that is padded with zeros."""
    return bytes(field).decode(errors="replace")
