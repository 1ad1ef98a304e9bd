"""Read a .wandb file: a header of 7 bytes, then wandb.proto messages in LevelDB's log format."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 32768
FRAME = struct.Struct("<IHB")  # checksum, bytes, kind
FULL, LAST = 1, 4


def records(run: Path) -> Iterator[Any]:
    """Yield the records of the only wandb run in a run folder."""
    # Takes seconds, and every test worker imports this file. Its stub lacks Record.
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    (path,) = run.glob("wandb/*run-*/run-*.wandb")
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    offset, message = HEADER, b""
    while offset < len(data):
        left = BLOCK - offset % BLOCK
        if left < FRAME.size:
            offset += left
            continue
        _, size, kind = FRAME.unpack_from(data, offset)
        offset += FRAME.size
        message += data[offset : offset + size]
        offset += size
        if kind in (FULL, LAST):
            yield Record.FromString(message)
            message = b""


def history(run: Path) -> list[dict[str, Any]]:
    """Return the logged values of each step by name; nested names are joined by dots."""
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(run)
        if record.WhichOneof("record_type") == "history"
    ]


def artifact(run: Path) -> dict[str, Path]:
    """Return the local paths of the files in the artifact of type `run`, by name."""
    (found,) = [record.artifact for record in records(run) if record.artifact.type == "run"]
    return {entry.path: Path(entry.local_path) for entry in found.manifest.contents}
