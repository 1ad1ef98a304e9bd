"""The memory in use on each GPU, by nvidia-smi, which needs no process on the GPU."""

import shutil
import subprocess

from hvscale.core.numbers import read_whole
from hvscale.core.units import MIB

ASK_SECONDS = 20
MOST_MIB = 1 << 40


def nvidia_smi(query: str) -> list[str]:
    """The values of a query, one for each GPU; empty without nvidia-smi or an answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        asked = subprocess.run(
            [tool, f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in asked.stdout.splitlines() if line.strip()]


def used_bytes() -> list[int]:
    """The bytes in use on each GPU; empty if unknown."""
    found = [read_whole(text, 0, MOST_MIB) for text in nvidia_smi("memory.used")]
    return [mib * MIB for mib in found if mib is not None] if None not in found else []


def driver() -> str:
    """The driver's version; empty if unknown."""
    return next(iter(nvidia_smi("driver_version")), "")
