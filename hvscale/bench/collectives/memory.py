"""Checks that the buffers of a benchmark fit into memory, before any is allocated."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from hvscale.bench.collectives.request import MessagePath
from hvscale.core.errors import RequestError

if TYPE_CHECKING:
    from hvscale.bench.collectives.backends import Backend

CGROUP = Path("/sys/fs/cgroup")
GIB = 1 << 30


def available_bytes() -> int:
    """The bytes available on this node: the kernel's estimate, or what a cgroup (version 2) leaves
    if that is less.
    """
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no limit
        return free
    return min(free, max(0, limit - used))


def check_fits(buffer_bytes: int, buffers: int, ranks: int, available: int, where: str) -> None:
    """Raises RequestError, with the arithmetic, if the buffers of `ranks` ranks do not fit."""
    how = f"{buffer_bytes} bytes in each buffer x {buffers} buffers x {ranks} ranks"
    check_available(
        buffer_bytes * buffers * ranks,
        f"the largest size does not fit into {where}",
        how,
        available,
        "lower --max-bytes or start fewer ranks",
    )


def check_available(needed: int, what: str, how: str, available: int, fix: str) -> None:
    """Raises RequestError if more bytes are needed than available."""
    if needed > available:
        raise RequestError(f"{what}: {how} = {needed / GIB:.2f} GiB, and {available / GIB:.2f} GiB are free; {fix}")


SERVER = 0
CHIEF = 1  # the worker that relays between the server and NCCL
# The operations of a parameter exchange with the rank of the first worker. All-reduce has no
# server.
OPERATIONS = {"broadcast": 1, "gather": 1, "allreduce": 0}


def server_in_place(operation: str, rank: int) -> bool:
    """Whether a rank of an exchange uses one buffer. A worker's gather is out of place, because its
    buffer holds no other worker's gradients.
    """
    return operation != "gather" or rank == SERVER


def server_blocks(operation: str, path: MessagePath, rank: int, np: int) -> tuple[int, int]:
    """The sizes of a rank's send and receive buffers in an exchange, in blocks. A block holds all
    parameters once.

    In a gather, the server's receive buffer has a block for each rank including itself, as
    MPI_Gather requires.
    """
    if operation != "gather":
        return 0, 1
    if rank == SERVER:
        return 0, np
    return 1, np - 1 if path == "nccl" and rank == CHIEF else 0


def check_memory(
    operation: str,
    path: MessagePath,
    backend: "Backend",
    ranks: Iterable[int],
    np: int,
    block: int,
    available: int,
    where: str,
) -> None:
    """Raises RequestError, with the arithmetic, if the buffers of these ranks of an exchange do not
    fit. `block`: bytes of the parameters.
    """
    at_server, at_workers = 0, 0
    for rank in ranks:
        blocks = sum(server_blocks(operation, path, rank, np))
        if rank < OPERATIONS[operation]:
            at_server += 2 * blocks if operation == "gather" and backend.gather_copies_twice else blocks
        else:
            at_workers += blocks
    check_available(
        block * (at_server + at_workers),
        f"the parameters do not fit into {where}: {operation}",
        f"{block} bytes x ({at_server} at the server + {at_workers} at workers)",
        available,
        "lower --bytes or --workers",
    )
