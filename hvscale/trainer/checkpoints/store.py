"""Checkpoints: all that training needs to go on as if it had never stopped, one file each, the last few kept.

A file begins with a line that says its length and SHA-256, so that one damaged or cut short is known before it is used:

    hvscale-checkpoint/1 sha256=<64 hex digits> bytes=<20 digits>
    <what torch.save wrote, tensors and plain values only>
"""

import hashlib
import io
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.core.run_folder import cannot_write, write_atomically

FOLDER = "checkpoints"
NAME = re.compile(r"step-(\d{9})\.ckpt")
HEADER = re.compile(rb"hvscale-checkpoint/1 sha256=([0-9a-f]{64}) bytes=(\d{20})\n")
HEADER_BYTES = len(b"hvscale-checkpoint/1 sha256= bytes=\n") + 64 + 20
CHUNK = 1 << 20


class DamagedError(Exception):
    """A checkpoint that is not what was written; the message says in which way."""


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds. Every value is a tensor, a number, a text, or a list or dict of those."""

    step: int
    """Steps made."""
    steps: int | None
    """Steps that the ranks agreed on; None while they had not."""
    model: dict[str, Any]
    model_options: dict[str, Any]
    """What the model is built with."""
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    """Of fp16's losses; empty where there is none."""
    random: list[dict[str, Any]]
    """Of each rank."""
    arithmetic: dict[str, Any]
    config: dict[str, Any]
    place: dict[str, int] = field(default_factory=dict)
    """In the data, as the workload tells it; empty where the number of steps says it."""


class Folder:
    """The checkpoints of a run, by step."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path, self.keep = path, keep

    def files(self) -> list[Path]:
        """The newest first."""
        if not self.path.is_dir():
            return []
        return sorted((file for file in self.path.iterdir() if NAME.fullmatch(file.name)), reverse=True)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write beside, sync, rename; then remove all but the last few. Raises RequestError when the disk is full."""
        file = self.path / f"step-{checkpoint.step:09d}.ckpt"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for left in self.path.glob(f".{file.name[:5]}*"):  # of a process that was killed while it wrote
                left.unlink(missing_ok=True)
            write_atomically(file, lambda stream: write(checkpoint, stream))
        except (OSError, RuntimeError) as error:  # torch.save makes a RuntimeError of the second failed write
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            raise cannot_write(self.path, cause) from error
        for old in self.files()[self.keep :]:
            with suppress(OSError):
                old.unlink(missing_ok=True)
        return file

    def newest(self, warn: Callable[[str], None]) -> tuple[Path, Checkpoint] | None:
        """The newest that is whole; each damaged one is named to `warn`. None when there is no checkpoint at all.

        Raises RequestError when there are some and all are damaged.
        """
        files = self.files()
        for file in files:
            try:
                return file, read(file)
            except DamagedError as damage:
                warn(f"the checkpoint {file} is damaged ({damage}): the one before it is used")
        if files:
            raise RequestError(f"all checkpoints in {self.path} are damaged: take the folder away to start anew")
        return None


def write(checkpoint: Checkpoint, stream: IO[bytes]) -> None:
    stream.write(bytes(HEADER_BYTES))
    hashing = Hashing(stream)
    torch.save(vars(checkpoint), hashing)  # type: ignore[arg-type]
    stream.seek(0)
    stream.write(b"hvscale-checkpoint/1 sha256=%s bytes=%020d\n" % (hashing.digest(), hashing.bytes))
    stream.seek(0, io.SEEK_END)


def read(file: Path) -> Checkpoint:
    """Raises DamagedError when the file is not as it was written, RequestError when it cannot be read at all."""
    try:
        with open_regular(file) as stream:
            header = HEADER.fullmatch(stream.read(HEADER_BYTES))
            if header is None:
                raise DamagedError("its first line is not a checkpoint's")
            hashed, size = hashlib.sha256(), 0
            while chunk := stream.read(CHUNK):
                hashed.update(chunk)
                size += len(chunk)
            if size != int(header[2]):
                raise DamagedError(f"it has {size} bytes of {int(header[2])}")
            if hashed.hexdigest() != header[1].decode():
                raise DamagedError("its checksum is wrong")
            stream.seek(HEADER_BYTES)
            content = torch.load(io.BytesIO(stream.read()), map_location="cpu", weights_only=True)
    except OSError as error:
        raise RequestError(f"cannot read the checkpoint {file}: {error.strerror}") from error
    return Checkpoint(**content)


class Hashing(io.RawIOBase):
    """Passes on what is written, and keeps its length and SHA-256."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.hashed, self.bytes = stream, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hashed.update(data)
        size = memoryview(data).nbytes
        self.bytes += size
        self.stream.write(data)
        return size

    def digest(self) -> bytes:
        return self.hashed.hexdigest().encode()
