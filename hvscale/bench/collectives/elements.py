"""The elements of messages: their types, and the patterns that ranks send and must receive.

All patterns are whole numbers that every type holds exactly, on any number of ranks. bfloat16 has 8
significant bits, so it holds whole numbers up to 256 exactly, and every other type does too. Sums
stay below that in any order of addition.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.suggest import suggest_name

Pattern = NDArray[np.int64]
Carried = NDArray[np.generic]

LARGEST = 256
# A prime: no chunk of a message is a whole number of periods long, so a misplaced chunk is
# detected.
PERIOD = 1021
LARGEST_ADDEND = 4
MOST_ADDENDS = LARGEST // LARGEST_ADDEND
# No shorter period, and not symmetric.
_SCATTERED: Pattern = np.arange(PERIOD) ** 3 % PERIOD % 251
SLAB_PERIODS = 4096


def mark(source: int, target: int = 0) -> Pattern:
    """The pattern that `source` sends to `target`: PERIOD numbers from 0 to 250, shifted
    differently for each pair.
    """
    return np.roll(_SCATTERED, 37 * source + 101 * target)


def addend(rank: int, np_: int) -> Pattern:
    """A rank's part of a sum: numbers from 1 to 4; with more than 64 ranks mostly 0, at positions
    that differ by rank.
    """
    spacing = -(-np_ // MOST_ADDENDS)
    kept = (np.arange(PERIOD) + rank) % spacing == 0
    return np.where(kept, 1 + np.roll(_SCATTERED, 37 * rank) % LARGEST_ADDEND, 0)


def total(np_: int, block: int = 0) -> Pattern:
    """The sum of all ranks' parts for a block, by `addend_for`."""
    return np.asarray(sum(addend_for(rank, np_, block) for rank in range(np_)))


def addend_for(rank: int, np_: int, block: int) -> Pattern:
    """A rank's part of the sum that rank `block` receives."""
    return np.roll(addend(rank, np_), 101 * block)


def fill(target: Carried, pattern: Carried) -> None:
    """Fill `target` with repetitions of the pattern; both hold bits in the type's carrier."""
    whole = len(target) // PERIOD * PERIOD
    target[:whole].reshape(-1, PERIOD)[:] = pattern
    target[whole:] = pattern[: len(target) - whole]


def find_wrong(found: Carried, pattern: Carried) -> tuple[int, int | None]:
    """The number of elements that differ from the pattern, and the first of them. Bits are
    compared, so a NaN differs.
    """
    wrong, first = 0, None
    for start in range(0, len(found), SLAB_PERIODS * PERIOD):
        slab = found[start : start + SLAB_PERIODS * PERIOD]
        whole = len(slab) // PERIOD * PERIOD
        for offset, differs in (
            (0, slab[:whole].reshape(-1, PERIOD) != pattern),
            (whole, slab[whole:] != pattern[: len(slab) - whole]),
        ):
            count = int(np.count_nonzero(differs))
            if count and first is None:
                first = start + offset + int(np.argmax(differs))
            wrong += count
    return wrong, first


@dataclass(frozen=True)
class Dtype:
    """An element type. `carrier`: the unsigned NumPy type that holds its bits, so that comparisons
    compare bits.

    `nccl`: its name in nccl-tests. `mpi`: its name in MPI. `sum`: our own sum, for the 16-bit types
    that MPI cannot add up.
    """

    name: str
    nccl: str
    carrier: Any
    mpi: str
    sum: str | None = None

    @property
    def bytes(self) -> int:
        return int(np.dtype(self.carrier).itemsize)

    def encode(self, pattern: Pattern) -> Carried:
        """The bits of whole numbers up to 256 in this type."""
        if self.name == "bfloat16":
            return (pattern.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return pattern.astype(self.name).view(self.carrier)

    def decode(self, bits: Any) -> float:
        """The value of one element, given its bits."""
        if self.name == "bfloat16":
            return float((np.array([bits], np.uint32) << 16).view(np.float32)[0])
        return float(np.array([bits], self.carrier).view(self.name)[0])


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float32", "float", np.uint32, "FLOAT"),
        Dtype("float64", "double", np.uint64, "DOUBLE"),
        # MPI 4 has no float16: it is moved as integers and added by our own sum.
        Dtype("float16", "half", np.uint16, "UINT16_T", "hvbench_sum_float16"),
        Dtype("bfloat16", "bfloat16", np.uint16, "UINT16_T", "hvbench_sum_bfloat16"),
    )
}


def find_dtype(name: str) -> Dtype:
    """The type of this name. Raises RequestError, suggesting the nearest name, for an unknown
    one.
    """
    if name not in DTYPES:
        raise RequestError(f"--dtype {name}: {suggest_name('type', name, DTYPES)}")
    return DTYPES[name]
