"""hvscale's own broadcast, which sends a message in chunks and keeps several of them in flight.

It is available as a call, and through LD_PRELOAD in place of MPI_Bcast.
"""

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvscale.core.built_library import built_library, preloaded
from hvscale.core.errors import RequestError

if TYPE_CHECKING:
    from mpi4py import MPI

LIBRARY = "libhvbcast.so"
TABLE_VARIABLE, ALGORITHM_VARIABLE = "HVBCAST_TABLE", "HVBCAST_ALGORITHM"
DEFAULT_CHUNK, DEFAULT_DEPTH, DEFAULT_RADIX = 64 << 10, 8, 2
# Return values of the C library beside MPI's error codes.
USE_MPI_BCAST, INVALID = -1, -2
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
    """Broadcast `buffer` from the root to every rank of `comm` (default: MPI_COMM_WORLD).

    All ranks must pass the same algorithm and numbers. `buffer`: contiguous memory, `[memory,
    datatype]` or `[memory, count, datatype]`, as in mpi4py. `algorithm`: flat, chain, k-nomial (a
    tree with `radix` - 1 children per level), two-level, or library. `chunk`: bytes per send.
    `depth`: chunks in flight. The MPI library's broadcast handles zero bytes, a root out of range
    and inter-communicators.

    Raises RequestError for an invalid argument or if the C library is missing, and mpi4py's
    Exception for an MPI error.
    """
    from mpi4py import MPI

    communicator = MPI.COMM_WORLD if comm is None else comm
    memory, count, datatype = parse_buffer(buffer)
    if memory.readonly and root not in (communicator.rank, MPI.ROOT, MPI.PROC_NULL):
        raise RequestError("broadcast: the buffer is read-only, and this rank is not the root")
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
            f"broadcast: {algorithm}, chunk {chunk}, depth {depth}, radix {radix}: use flat, chain, k-nomial, two-level or library; "
            "chunk 1 to 2^30 (two-level: to 2^21), depth 1 to 1024, radix 2 or more"
        )
    if status == USE_MPI_BCAST:
        communicator.Bcast([memory, count, datatype], root)
    elif status != 0:
        raise MPI.Exception(status)


def parse_buffer(buffer: Any) -> "tuple[MPI.buffer, int, MPI.Datatype]":
    """The memory, the number of elements, and their type."""
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
    """The C library. Raises RequestError if it was not built."""
    # A preloaded copy, from whichever installation, is the one that knows this process'
    # communicators.
    process = ctypes.CDLL(None)
    loaded = process if hasattr(process, "hvbcast_broadcast") else ctypes.CDLL(str(library_path()))
    word, number = ctypes.c_size_t, ctypes.c_int
    loaded.hvbcast_broadcast.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int64, word, number, word),
        *(ctypes.c_char_p, ctypes.c_uint64, number, number),
    ]
    return loaded


def preloaded_here() -> ctypes.CDLL | None:
    """The C library that replaces MPI_Bcast in this process; None if none does."""
    process = ctypes.CDLL(None)
    return process if hasattr(process, "hvbcast_use") else None


def library_path() -> Path:
    """The path of the C library. Raises RequestError if it was not built."""
    return built_library(LIBRARY)


def preload_environment(table: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that make every rank broadcast by the decision table, given in compact form.

    `environment`: the ranks' environment so far. Raises RequestError if the C library is missing,
    or if LD_PRELOAD cannot name its path.
    """
    return {**preloaded(library_path(), environment), TABLE_VARIABLE: str(table.absolute())}
