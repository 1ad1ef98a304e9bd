"""Reads the recording of one rank's gradients (docs/reference/gradients-format.md), whole or
truncated.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, field_validator

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.core.numbers import MOST_RANKS
from hvscale.profiling.record.rank_side.gradient_recorder import (
    CUDA,
    FRAME,
    MAGIC,
    MOST_BYTES,
    NOT_ON_GPU,
    SETTINGS,
    STEP,
    VERSION,
)

Int64 = NDArray[np.int64]
LARGEST = 2**62
LARGEST_TENSOR = 2**50  # bytes
NARROW, WIDE = np.dtype("<u4"), np.dtype("<u8")


class GradientTensor(BaseModel):
    """A tensor that a rank all-reduces, as the file describes it."""

    model_config = ConfigDict(frozen=True)

    name: str
    dtype: str
    bytes: int = Field(ge=0, le=LARGEST_TENSOR)
    group: str | None
    """Tensors of one grouped all-reduce share this name; None outside a group."""
    process_set: NonNegativeInt
    device: str


class GradientsHeader(BaseModel):
    """The start of a file: the rank, its job and its libraries."""

    version: int
    rank: int = Field(ge=0, lt=MOST_RANKS)
    size: PositiveInt = Field(le=MOST_RANKS)
    local_size: PositiveInt
    horovod: str | None
    torch: str | None
    threads: PositiveInt | None = None
    """PyTorch's threads of computation; None if an older hvscale recorded it."""
    settings: dict[str, str] = {}
    """Environment variables of Horovod and the MPI library that the rank had when it started.

    Only SETTINGS: a replay sets them in its ranks.
    """

    @field_validator("settings")
    @classmethod
    def without_others(cls, settings: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in settings.items() if name in SETTINGS}


@dataclass(frozen=True)
class GradientStep:
    """One step of one rank. All times are seconds after its start."""

    number: int
    seconds: float
    tensors: Int64
    """(n,): numbers of the tensors in the order in which they were enqueued."""
    enqueued: NDArray[np.float64]
    """(n,): when each was enqueued."""
    positions: Int64
    """(m,): how many enqueues precede each wait."""
    handles: Int64
    """(m,): for how many tensors or groups each wait calls `synchronize()`, the oldest first."""
    begins: NDArray[np.float64]
    ends: NDArray[np.float64]
    blocked: NDArray[np.float64]
    """(m,): time inside `synchronize()` between begin and end."""
    on_gpu: "GpuTimes | None" = None
    """None for a step without times on the GPU."""


@dataclass(frozen=True)
class GpuTimes:
    """The CUDA events of a step, in seconds.

    `ready`: (n,), from the step's start on the GPU until the stream of computation reached each
    enqueue; NaN for tensors that are not on the GPU. `after`: from the last wait to the step's end.
    """

    ready: NDArray[np.float64]
    after: float


@dataclass(frozen=True)
class RankGradients:
    """The gradients of one rank."""

    header: GradientsHeader
    tensors: list[GradientTensor]
    steps: list[GradientStep]
    warning: str | None
    """Why the end of the file is not used."""


def read_gradients(path: Path) -> RankGradients:
    """Read a file up to its first damaged frame.

    Raises RequestError, naming `path`, when it cannot be read or no recording starts it.
    """
    try:
        with open_regular(path) as stream:
            return _read(path, stream)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error


def _read(path: Path, stream: BinaryIO) -> RankGradients:
    frames = _frames(stream)
    kind, payload = next(frames, (b"", b""))
    if kind != b"HEAD" or not payload.startswith(MAGIC):
        raise RequestError(f"{path} is not a recording of gradients, or its start is damaged")
    try:
        header = GradientsHeader.model_validate_json(payload[len(MAGIC) :])
    except ValidationError as error:
        raise RequestError(f"{path} is damaged: its header does not describe a rank") from error
    if header.version > VERSION:  # version 1 has no times on a GPU
        raise RequestError(
            f"{path} has format version {header.version}, and this hvscale reads versions up to {VERSION}: "
            "read it with the hvscale that recorded it"
        )
    tensors: list[GradientTensor] = []
    steps: dict[int, GradientStep] = {}
    used = stream.tell()
    try:
        for kind, payload in frames:
            if kind == b"TNSR":
                tensors.append(GradientTensor.model_validate_json(payload))
            elif kind == b"STEP":
                step = _step(payload, len(tensors))
                steps[step.number] = step
            elif kind == b"CUDA":
                number, times = _gpu_times(payload)
                if number not in steps or len(steps[number].enqueued) != len(times.ready):
                    raise ValueError("a step that was not recorded")
                steps[number] = replace(steps[number], on_gpu=times)
            else:
                raise ValueError("unknown frame")
            used = stream.tell()
    except ValueError:
        pass  # the steps before the damage are used
    unused = stream.seek(0, 2) - used
    warning = f"{path.name}: its last {unused} bytes are damaged; {len(steps)} steps are used" if unused else None
    return RankGradients(header, tensors, list(steps.values()), warning)


def _frames(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Kind and payload of each frame; ends at the first damaged one."""
    while len(head := stream.read(FRAME.size)) == FRAME.size:
        kind, size, check = FRAME.unpack(head)
        if size > MOST_BYTES:
            return
        payload = stream.read(size)
        if len(payload) < size or zlib.crc32(payload) != check:
            return
        yield kind, payload


def _gpu_times(payload: bytes) -> tuple[int, GpuTimes]:
    """Read a step's times on the GPU, and its number. Raises ValueError when they are damaged."""
    if len(payload) < CUDA.size:
        raise ValueError("no times")
    number, after, count = CUDA.unpack_from(payload)
    if len(payload) != CUDA.size + count * WIDE.itemsize:
        raise ValueError("a column of another length")
    times = np.frombuffer(payload, WIDE, count, CUDA.size)
    missing = times == NOT_ON_GPU
    if after > LARGEST or (times[~missing] > LARGEST).any():
        raise ValueError("a time that no clock shows")
    return number, GpuTimes(np.where(missing, np.nan, times / 1e9), after / 1e9)


def _step(payload: bytes, known_tensors: int) -> GradientStep:
    """Read a step. Raises ValueError when its columns do not fit together."""
    if len(payload) < STEP.size:
        raise ValueError("no step")
    number, start, end, enqueues, waits = STEP.unpack_from(payload)
    narrow, wide = enqueues + 2 * waits, enqueues + 3 * waits
    if len(payload) != STEP.size + narrow * NARROW.itemsize + wide * WIDE.itemsize:
        raise ValueError("columns of another length")
    numbers = np.frombuffer(payload, NARROW, narrow, STEP.size).astype(np.int64)
    times = np.frombuffer(payload, WIDE, wide, STEP.size + narrow * NARROW.itemsize)
    if max(start, end, *times.tolist(), 0) > LARGEST or end < start:
        raise ValueError("a time that no clock shows")
    tensors, positions, handles = np.split(numbers, [enqueues, enqueues + waits])
    if (tensors >= known_tensors).any() or (positions > enqueues).any():
        raise ValueError("a tensor that was not described")
    *moments, blocked = np.split(times.astype(np.int64), [enqueues, enqueues + waits, enqueues + 2 * waits])
    enqueued, begins, ends = ((moment - start) / 1e9 for moment in moments)
    return GradientStep(number, (end - start) / 1e9, tensors, enqueued, positions, handles, begins, ends, blocked / 1e9)
