"""The broadcast as a call, for a program that chooses for itself."""

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvscale.core.built_library import built_library, preloaded
from hvscale.core.errors import RequestError

if TYPE_CHECKING:
    from mpi4py import MPI

DEFAULT_CHUNK, DEFAULT_DEPTH, DEFAULT_RADIX = 64 << 10, 8, 2
# What the C part answers beside MPI's error codes.
LEFT_TO_THE_LIBRARY, INVALID = -1, -2
WORD_MASK = 2**64 - 1


def broadcast(
    buffer: Any,
    root: int = 0,
    comm: "MPI.Comm | None" = None,
    *,
    algorithm: str = "chain",
    chunk: int = DEFAULT_CHUNK,
    depth: int = DEFAULT_DEPTH,
    radix: int = DEFAULT_RADIX,
) -> None:
    """Give every rank of `comm` (MPI_COMM_WORLD) what `buffer` holds at the root; all ranks must
    ask for the same algorithm and numbers.

    `buffer`: contiguous memory, `[memory, datatype]` or `[memory, count, datatype]`, as mpi4py
    takes it. `algorithm`: flat, chain, k-nomial (with `radix` children of each digit less one),
    two-level, or library. `chunk`: bytes sent at once; `depth`: chunks under way at once. What is
    the library's own, such as zero bytes, a root out of range or two groups, is its broadcast's.

    Raises RequestError for a choice that cannot be made or without the C part, and mpi4py's
    Exception for an error of MPI.
    """
    from mpi4py import MPI

    communicator = MPI.COMM_WORLD if comm is None else comm
    memory, count, datatype = message(buffer)
    if memory.readonly and root not in (communicator.rank, MPI.ROOT, MPI.PROC_NULL):
        raise RequestError("broadcast: the buffer cannot be written, and this rank is not the root")
    status = native().hvbcast_broadcast(
        memory.address,
        count,
        handle(datatype),
        root,
        handle(communicator),
        algorithm.encode(),
        chunk & WORD_MASK,
        depth,
        radix,
    )
    if status == INVALID:
        raise RequestError(
            f"broadcast: {algorithm}, chunk {chunk}, depth {depth}, radix {radix}: not one of flat, chain, k-nomial, two-level and library, or "
            "a number outside its limits: docs/explanation/broadcast.md"
        )
    if status == LEFT_TO_THE_LIBRARY:
        communicator.Bcast([memory, count, datatype], root)
    elif status != 0:
        raise MPI.Exception(status)


def message(buffer: Any) -> "tuple[MPI.buffer, int, MPI.Datatype]":
    """The memory, its elements and their type."""
    from mpi4py import MPI

    if not isinstance(buffer, list | tuple):
        memory = MPI.buffer(buffer)
        return memory, memory.nbytes, MPI.BYTE
    memory, datatype = MPI.buffer(buffer[0]), buffer[-1]
    return memory, buffer[1] if len(buffer) == 3 else memory.nbytes // datatype.extent, datatype


def handle(mpi_object: Any) -> int:
    from mpi4py import MPI

    return MPI._handleof(mpi_object) & WORD_MASK


@cache
def native() -> ctypes.CDLL:
    """Raises RequestError when it was not built."""
    # What is preloaded already, from whichever installation, is the one that knows this process'
    # communicators.
    preloaded = ctypes.CDLL(None)
    loaded = preloaded if hasattr(preloaded, "hvbcast_broadcast") else ctypes.CDLL(str(library_path()))
    word, number = ctypes.c_size_t, ctypes.c_int
    loaded.hvbcast_broadcast.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int64, word, number, word),
        *(ctypes.c_char_p, ctypes.c_uint64, number, number),
    ]
    return loaded


LIBRARY = "libhvbcast.so"
TABLE_VARIABLE = "HVBCAST_TABLE"


def library_path() -> Path:
    """Raises RequestError when it was not built."""
    return built_library(LIBRARY)


def preload_environment(table: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What every rank needs in its environment to broadcast by the decision table, in its compact
    form; `environment` is what it has.

    Raises RequestError when the library is missing, or lies where LD_PRELOAD cannot name it.
    """
    return {**preloaded(library_path(), environment), TABLE_VARIABLE: str(table.absolute())}
