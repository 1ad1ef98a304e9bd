"""Whether the buffers of a measurement fit: said before any of them is made."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from hvscale.bench.collectives.request import Way
from hvscale.core.errors import RequestError

if TYPE_CHECKING:
    from hvscale.bench.collectives.backends import Backend

CGROUP = Path("/sys/fs/cgroup")
GIB = 1 << 30


def available_bytes() -> int:
    """What this node can still give: the kernel's estimate, or less where a cgroup (version 2) has a limit."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no limit
        return free
    return min(free, max(0, limit - used))


def check_fits(buffer_bytes: int, buffers: int, ranks: int, available: int, where: str) -> None:
    """Raises RequestError, with the arithmetic."""
    how = f"{buffer_bytes} bytes in each buffer x {buffers} buffers x {ranks} ranks"
    refuse_more(
        buffer_bytes * buffers * ranks,
        f"the largest size does not fit {where}",
        how,
        available,
        "lower --max-bytes or start fewer ranks",
    )


def refuse_more(needed: int, what: str, how: str, available: int, cure: str) -> None:
    """Raises RequestError where more bytes are needed than there are."""
    if needed > available:
        raise RequestError(f"{what}: {how} = {needed / GIB:.2f} GiB, and {available / GIB:.2f} GiB are free; {cure}")


SERVER = 0
CHIEF = 1  # the worker that NCCL's ways go over
# The rank of the first worker: all-reduce has no server.
OPERATIONS = {"broadcast": 1, "gather": 1, "allreduce": 0}


def in_place(operation: str, rank: int) -> bool:
    """A worker's gradients have no room in its own memory for all others'."""
    return operation != "gather" or rank == SERVER


def held(operation: str, path: Way, rank: int, np: int) -> tuple[int, int]:
    """Blocks in the buffers that a rank sends from and receives into; a block holds all parameters once.

    Gathering has one for each rank, as MPI_Gather wants it: the server's own stays where it is.
    """
    if operation != "gather":
        return 0, 1
    if rank == SERVER:
        return 0, np
    return 1, np - 1 if path == "nccl" and rank == CHIEF else 0


def check_held(
    operation: str, path: Way, backend: "Backend", ranks: Iterable[int], np: int, block: int, available: int, where: str
) -> None:
    """Raises RequestError, with the arithmetic, where the buffers of these ranks need more bytes than there are. `block`: in bytes."""
    at_server, at_workers = 0, 0
    for rank in ranks:
        blocks = sum(held(operation, path, rank, np))
        if rank < OPERATIONS[operation]:
            at_server += 2 * blocks if operation == "gather" and backend.gathers_twice else blocks
        else:
            at_workers += blocks
    refuse_more(
        block * (at_server + at_workers),
        f"the parameters do not fit {where}: {operation}",
        f"{block} bytes x ({at_server} at the server + {at_workers} at workers)",
        available,
        "lower --bytes or take fewer --workers",
    )
