"""Reads what wandb's client logs to disk: its own messages (wandb.proto) in the framing of
LevelDB's logs, behind a header of 7 bytes.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # its stub knows no generation of protobuf

HEADER, BLOCK = 7, 32768
FRAME = struct.Struct("<IHB")  # checksum, bytes, kind
FULL, LAST = 1, 4


def records(run: Path) -> Iterator[Any]:
    """Of the one wandb run in a run folder."""
    (path,) = run.glob("wandb/*run-*/run-*.wandb")
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, whole = HEADER, b""
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < FRAME.size:
            at += left
            continue
        _, size, kind = FRAME.unpack_from(data, at)
        at += FRAME.size
        whole += data[at : at + size]
        at += size
        if kind in (FULL, LAST):
            yield Record.FromString(whole)
            whole = b""


def history(run: Path) -> list[dict[str, Any]]:
    """What was logged of each step, by name; names that are nested are joined by dots."""
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(run)
        if record.WhichOneof("record_type") == "history"
    ]


def artifact(run: Path) -> dict[str, Path]:
    """The files of the artifact of type `run`: where each of them lies, by its name in it."""
    (found,) = [record.artifact for record in records(run) if record.artifact.type == "run"]
    return {entry.path: Path(entry.local_path) for entry in found.manifest.contents}
