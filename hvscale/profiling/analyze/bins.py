"""Ranges of message sizes."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.units import GIB, KIB, MIB

UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB}
SIZE = re.compile(r"(\d{1,18})\s*([KMG]?)(?:i?B)?", re.IGNORECASE)

# The ranges of "Scaling Single-Image Super-Resolution Training on Modern HPC Clusters" (Anthony et
# al., 2021), and what lies beyond.
STUDY_EDGES = (128 * KIB, 16 * MIB, 32 * MIB, 64 * MIB)
POWERS_OF_TWO = tuple(1 << power for power in range(63))


@dataclass(frozen=True)
class Bins:
    """Ranges by their upper edges in bytes, each inclusive. Bin 0 holds messages without bytes; the
    last one is open.
    """

    edges: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.edges) + 2

    def index(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bin of each size in bytes."""
        found = np.searchsorted(np.array(self.edges, np.int64), sizes, side="left") + 1
        return np.where(sizes == 0, 0, found)

    def limits(self, index: int) -> tuple[int, int | None]:
        """The smallest and the largest size in a bin; None where it is open."""
        if index == 0:
            return 0, 0
        low = self.edges[index - 2] + 1 if index > 1 else 1
        return low, self.edges[index - 1] if index <= len(self.edges) else None


def parse_bins(text: str) -> Bins:
    """`study`, `pow2`, or upper edges such as `1K,64K,4M` (K, M, G: powers of 1024). Raises
    RequestError for anything else.
    """
    if text == "study":
        return Bins(STUDY_EDGES)
    if text == "pow2":
        return Bins(POWERS_OF_TWO)
    edges = tuple(_size(word, text) for word in text.split(","))
    if any(low >= high for low, high in zip((0, *edges), edges, strict=False)):
        raise RequestError(f"--bins {text}: sizes must be above 0 and ascend, as in 1K,64K,4M")
    return Bins(edges)


def _size(word: str, text: str) -> int:
    match = SIZE.fullmatch(word.strip())
    size = int(match[1]) * UNITS[match[2].upper()] if match else None
    if size is None or size >= 1 << 63:
        raise RequestError(
            f"--bins {text}: {word.strip() or 'an empty word'} is not a size. Give study, pow2 or upper edges such as 1K,64K,4M"
        )
    return size
