"""Whether the buffers of a measurement fit: said before any of them is made."""

from pathlib import Path

import psutil

from hvscale.core.errors import RequestError

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
