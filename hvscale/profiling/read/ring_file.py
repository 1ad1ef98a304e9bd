"""The format that the files of hvprof and of its NCCL plug-in share: a header of 4096 bytes with a
checksum, and a ring of records.
"""

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.numbers import MOST_RANKS

HEADER_BYTES = 4096
CHECKED_BYTES = 4032  # of the header; the rest changes with every record
CHECK_FACTOR = 0x9E3779B97F4A7C15
INT64_MAX = 2**63 - 1
# Of a call's start and duration, and of the clock's offset: their sum fits into a signed integer.
MAX_CALL_NS, MAX_CLOCK_NS = 2**61 - 1, 2**62
COMMON_FIELDS: list[tuple[str, Any, int]] = [  # name, type, offset
    ("magic", "V8", 0),
    ("version", "<u4", 8),
    ("header_bytes", "<u4", 12),
    ("record_bytes", "<u4", 16),
    ("rank", "<u4", 20),
    ("capacity", "<u8", 24),
    ("world_size", "<u4", 32),
    ("pid", "<u4", 36),
    ("monotonic_ns", "<u8", 40),
    ("realtime_ns", "<u8", 48),
    ("check", "<u8", 56),
    ("host", "S64", 64),
]


def header_layout(more_fields: list[tuple[str, Any, int]]) -> np.dtype[Any]:
    """The dtype of a header: COMMON_FIELDS and `more_fields`, each (name, type, offset)."""
    names, formats, offsets = zip(*COMMON_FIELDS, *more_fields, strict=True)
    return np.dtype(
        {"names": list(names), "formats": list(formats), "offsets": list(offsets), "itemsize": HEADER_BYTES}
    )


def check_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The checksum of each row of `words` (n, k), modulo 2^64.

    It is CHECK_FACTOR plus the sum over i of word i times CHECK_FACTOR * (2 i + 1).
    """
    factors = (np.arange(words.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)) * np.uint64(CHECK_FACTOR)
    checks: NDArray[np.uint64] = words @ factors + np.uint64(CHECK_FACTOR)
    return checks


def has_correct_check(entries: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether the last word of each entry is the checksum of the words before it."""
    words = entries.view("<u8").reshape(len(entries), entries.itemsize // 8)
    correct: NDArray[np.bool_] = words[:, -1] == check_words(words[:, :-1])
    return correct


def is_in_place(records: NDArray[Any], first_slot: int, capacity: int) -> NDArray[np.bool_]:
    """Whether the sequence number of each record belongs into its slot, from `first_slot` on."""
    slots = np.arange(first_slot, first_slot + len(records), dtype=np.uint64)
    in_place: NDArray[np.bool_] = (records["sequence"] > 0) & (
        (records["sequence"] - np.uint64(1)) % np.uint64(capacity) == slots
    )
    return in_place


def has_valid_times(records: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether start and duration of each record are times that a call can have."""
    valid: NDArray[np.bool_] = (records["start_ns"] <= MAX_CALL_NS) & (records["duration_ns"] <= MAX_CALL_NS)
    return valid


def read_header_fields(
    path: Path,
    stream: IO[bytes],
    layout: np.dtype[Any],
    *,
    magic: bytes,
    version: int,
    sizes: dict[str, int],
    writer: str,
    may_have_no_records: bool = False,
) -> Any:
    """Reads and checks the header at the start of `stream`; one value of dtype `layout`.

    `sizes`: the required values of some fields. `writer`: the program that writes such files.
    `may_have_no_records`: a capacity of 0 is valid.

    Raises RequestError, naming `path`, if the header is damaged or has another version or magic.
    """
    raw = stream.read(HEADER_BYTES)
    if raw[: len(magic)] != magic:
        raise RequestError(f"{path} is not a profile that {writer} wrote")
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
    is_empty = not header["capacity"] and not may_have_no_records
    if is_empty or any(header[name] != size for name, size in sizes.items()):
        raise RequestError(f"{path} is damaged: its header has sizes that version {version} does not allow")
    if header["rank"] >= MOST_RANKS or max(header["monotonic_ns"], header["realtime_ns"]) > MAX_CLOCK_NS:
        raise RequestError(f"{path} is damaged: its header has a rank or a time that no job can have")
    return header


def field_text(field: Any) -> str:
    """The text of a field that is padded with zeros."""
    return bytes(field).decode(errors="replace")
