"""Checkpoint files: everything that training needs to resume exactly.

The first line of a file holds its length and SHA-256, so that a damaged or truncated file is
detected before it is used:

    hvscale-checkpoint/1 sha256=<64 hex digits> bytes=<20 digits>
    <output of torch.save, tensors and plain values only>
"""

import hashlib
import io
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import torch

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.core.run_folder import write_atomically

FOLDER = "checkpoints"
NAME = re.compile(r"step-(\d{9})\.ckpt")
HEADER = re.compile(rb"hvscale-checkpoint/1 sha256=([0-9a-f]{64}) bytes=(\d{20})\n")
HEADER_BYTES = len(b"hvscale-checkpoint/1 sha256= bytes=\n") + 64 + 20
CHUNK_BYTES = 1 << 20
RANK_STRIDE = 1_000_003  # so that ranks of a run with the next seed do not reuse this run's seeds


class DamagedError(Exception):
    """A checkpoint file is not as it was written; the message gives the reason."""


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file: tensors, numbers, strings, and lists or dicts of these."""

    step: int
    """Steps done."""
    steps: int | None
    """Total number of steps; None if the ranks had not agreed on it yet."""
    model: dict[str, Any]
    model_options: dict[str, Any]
    """Keyword arguments the model was built with."""
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    """State of the fp16 loss scaler; empty for other precisions."""
    random: list[dict[str, Any]]
    """Random state of each rank; empty in a commit of an elastic job."""
    compute_format: dict[str, Any]
    config: dict[str, Any]
    data_position: dict[str, int] = field(default_factory=dict)
    """Position in the data; empty if the number of steps determines it."""


class CheckpointFolder:
    """The checkpoints of a run. Only the newest `keep` are kept."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path, self.keep = path, keep

    def files(self) -> list[Path]:
        """The checkpoint files, newest first."""
        if not self.path.is_dir():
            return []
        return sorted((file for file in self.path.iterdir() if NAME.fullmatch(file.name)), reverse=True)

    def require_writable(self) -> None:
        """Create the folder if it is missing. Raises RequestError if it cannot be written to."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise cannot_save(f"checkpoints to {self.path}", error) from error

    def require_unused(self) -> None:
        """Raises RequestError if the folder holds checkpoints, which `save` might remove."""
        if files := self.files():
            raise RequestError(
                f"{self.path} holds checkpoints of another training, such as {files[0].name}: continue it with "
                "--resume auto, or choose another --checkpoint-dir"
            )

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write atomically, then remove old checkpoints, and those of later steps, which a resume
        from an earlier one has abandoned.

        Raises RequestError if the file cannot be written.
        """
        file = self.path / f"step-{checkpoint.step:09d}.ckpt"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for unfinished in self.path.glob(f".{file.name[:5]}*"):  # left by processes killed while writing
                unfinished.unlink(missing_ok=True)
            write_atomically(file, lambda stream: write(checkpoint, stream))
        except OSError as error:
            raise cannot_save(f"the checkpoint {file}", error) from error
        files = self.files()
        newest = files.index(file)
        for old in files[:newest] + files[newest + self.keep :]:
            with suppress(OSError):
                old.unlink(missing_ok=True)
        return file

    def newest(self, warn: Callable[[str], None]) -> tuple[Path, Checkpoint] | None:
        """The newest intact checkpoint, or None if there are no files.

        `warn` receives a message for each damaged file. Raises RequestError if all are damaged.
        """
        files = self.files()
        for file in files:
            try:
                return file, read(file)
            except DamagedError as damage:
                warn(f"checkpoint {file} is damaged ({damage}): using the previous one")
        if files:
            raise RequestError(f"all checkpoints in {self.path} are damaged: remove the folder to start from scratch")
        return None


def save_tensors(values: Any, stream: Any) -> None:
    """Write tensors and plain values as torch.save does. Raises OSError if a write fails."""
    try:
        torch.save(values, stream)
    except RuntimeError as error:  # of the second failed write, at the end of the archive
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def cannot_save(what: str, error: OSError) -> RequestError:
    return RequestError(
        f"cannot write {what}: {error.strerror}. Choose another folder with --checkpoint-dir, or make room"
    )


def write(checkpoint: Checkpoint, stream: IO[bytes]) -> None:
    stream.write(bytes(HEADER_BYTES))
    hashing = HashingStream(stream)
    save_tensors(vars(checkpoint), hashing)
    stream.seek(0)
    stream.write(b"hvscale-checkpoint/1 sha256=%s bytes=%020d\n" % (hashing.digest(), hashing.bytes))
    stream.seek(0, io.SEEK_END)


def read(file: Path) -> Checkpoint:
    """Read a checkpoint file.

    Raises DamagedError if it is not as it was written, RequestError if it cannot be read at all.
    """
    try:
        with open_regular(file) as stream:
            header = HEADER.fullmatch(stream.read(HEADER_BYTES))
            if header is None:
                raise DamagedError("its first line is not that of a checkpoint")
            hashed, size = hashlib.sha256(), 0
            while chunk := stream.read(CHUNK_BYTES):
                hashed.update(chunk)
                size += len(chunk)
            if size != int(header[2]):
                raise DamagedError(f"it has {size} of {int(header[2])} bytes")
            if hashed.hexdigest() != header[1].decode():
                raise DamagedError("its checksum is wrong")
            stream.seek(HEADER_BYTES)
            return Checkpoint(**torch.load(io.BytesIO(stream.read()), map_location="cpu", weights_only=True))
    except OSError as error:
        raise RequestError(f"cannot read the checkpoint {file}: {error.strerror}") from error
    except (pickle.UnpicklingError, RuntimeError, TypeError, KeyError) as error:  # its checksum is right
        raise RequestError(
            f"{file} is not a checkpoint that this hvscale reads: use the hvscale that wrote it, or another checkpoint"
        ) from error


def step_of(file: Path) -> int:
    """The step in the name of a file of a `CheckpointFolder`."""
    return int(file.stem.partition("-")[2])


def is_checkpoint(file: Path) -> bool:
    """Whether the file's name or first line says so; the rest may be damaged or unreadable."""
    if NAME.fullmatch(file.name):
        return True
    try:
        with open_regular(file) as stream:
            return HEADER.fullmatch(stream.read(HEADER_BYTES)) is not None
    except OSError:
        return False


class HashingStream(io.RawIOBase):
    """Forwards writes and computes their length and SHA-256."""

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


def random_state(device: torch.device) -> dict[str, Any]:
    """This rank's random state, used by dropout; crops and the order of images need none."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def seed_rank(seed: int, rank: int, step: int = 0) -> None:
    """Seed this rank differently from other ranks and from resumes at other steps.

    Call it after the model is built.
    """
    torch.manual_seed(seed + RANK_STRIDE * (rank + RANK_STRIDE * step))
