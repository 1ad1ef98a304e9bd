"""Element types, and the patterns that ranks send and must receive.

Every type holds every pattern exactly. bfloat16 has 8 significant bits, so it holds whole numbers
up to 256 exactly, and every other type does too. Sums do not exceed 256, for any number of ranks
and in any order of addition.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.suggest import suggest_name

Pattern = NDArray[np.int64]
Bits = NDArray[np.generic]

LARGEST_EXACT = 256
# A prime, so that no chunk of a message is a whole number of periods, and the check detects a
# misplaced chunk.
PERIOD = 1021
MAX_ADDEND = 4
MAX_ADDENDS = LARGEST_EXACT // MAX_ADDEND
# It has no shorter period and no symmetry.
_BASE_PATTERN: Pattern = np.arange(PERIOD) ** 3 % PERIOD % 251
SLAB_PERIODS = 4096


def sender_pattern(source: int, target: int = 0) -> Pattern:
    """The pattern that `source` sends to `target`: PERIOD numbers from 0 to 250, with a different
    shift for each pair.
    """
    return np.roll(_BASE_PATTERN, 37 * source + 101 * target)


def addend(rank: int, np_: int) -> Pattern:
    """A rank's addend: PERIOD numbers from 1 to 4. With more than 64 ranks most are 0, at positions
    that differ by rank.
    """
    spacing = -(-np_ // MAX_ADDENDS)
    nonzero = (np.arange(PERIOD) + rank) % spacing == 0
    return np.where(nonzero, 1 + np.roll(_BASE_PATTERN, 37 * rank) % MAX_ADDEND, 0)


def total(np_: int, block: int = 0) -> Pattern:
    """The sum of all ranks' addends for a block."""
    return np.asarray(sum(block_addend(rank, np_, block) for rank in range(np_)))


def block_addend(rank: int, np_: int, block: int) -> Pattern:
    """A rank's addend in the sum that rank `block` receives."""
    return np.roll(addend(rank, np_), 101 * block)


def fill(target: Bits, pattern: Bits) -> None:
    """Fill `target` with repetitions of the pattern."""
    whole = len(target) // PERIOD * PERIOD
    target[:whole].reshape(-1, PERIOD)[:] = pattern
    target[whole:] = pattern[: len(target) - whole]


def find_wrong(found: Bits, pattern: Bits) -> tuple[int, int | None]:
    """The number of elements that differ from the repeated pattern, and the index of the first.

    Compares bits, so a NaN differs from every pattern.
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
    """An element type.

    `bits_type`: the unsigned NumPy type of the same size, for comparing bits. `nccl`: its name in
    nccl-tests. `mpi`: its name in MPI. `sum`: our C function for the 16-bit types that MPI cannot
    sum.
    """

    name: str
    nccl: str
    bits_type: Any
    mpi: str
    sum: str | None = None

    @property
    def bytes(self) -> int:
        return int(np.dtype(self.bits_type).itemsize)

    def encode(self, pattern: Pattern) -> Bits:
        """The bits of whole numbers up to 256 in this type."""
        if self.name == "bfloat16":
            return (pattern.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return pattern.astype(self.name).view(self.bits_type)

    def decode(self, bits: Any) -> float:
        """The value of one element, given its bits."""
        if self.name == "bfloat16":
            return float((np.array([bits], np.uint32) << 16).view(np.float32)[0])
        return float(np.array([bits], self.bits_type).view(self.name)[0])


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float32", "float", np.uint32, "FLOAT"),
        Dtype("float64", "double", np.uint64, "DOUBLE"),
        # MPI 4 has no float16: MPI moves it as integers, and our C function sums it.
        Dtype("float16", "half", np.uint16, "UINT16_T", "hvbench_sum_float16"),
        Dtype("bfloat16", "bfloat16", np.uint16, "UINT16_T", "hvbench_sum_bfloat16"),
    )
}


def find_dtype(name: str) -> Dtype:
    """The type of this name. Raises RequestError, suggesting the nearest name, if there is none."""
    if name not in DTYPES:
        raise RequestError(f"--dtype {name}: {suggest_name('type', name, DTYPES)}")
    return DTYPES[name]
