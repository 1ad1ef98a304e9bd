"""The memory in use on each GPU, by nvidia-smi, which needs no process on the GPU."""

from hvscale.core.host import nvidia_smi
from hvscale.core.numbers import read_whole
from hvscale.core.units import MIB

MOST_MIB = 1 << 40


def used_bytes() -> list[int]:
    """The bytes in use on each GPU; empty if unknown."""
    found = [read_whole(text, 0, MOST_MIB) for text in nvidia_smi("memory.used")]
    return [mib * MIB for mib in found if mib is not None] if None not in found else []


def driver() -> str:
    """The driver's version; empty if unknown."""
    return next(iter(nvidia_smi("driver_version")), "")
