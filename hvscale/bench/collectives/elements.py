"""The elements of messages: their types, and the patterns that ranks send and must receive.

All patterns are whole numbers that every type holds exactly, on any number of ranks. bfloat16 has 8 significant bits, so it holds
whole numbers up to 256 exactly, and every other type does too. Sums stay below that in any order of addition.
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
# A prime: no chunk that a library may cut a message into is a whole number of periods long, so one at a wrong place is seen.
PERIOD = 1021
LARGEST_ADDEND = 4
MOST_ADDENDS = LARGEST // LARGEST_ADDEND
# Without a shorter period of its own, and not the same in both directions.
_SCATTERED: Pattern = np.arange(PERIOD) ** 3 % PERIOD % 251
SLAB_PERIODS = 4096


def mark(source: int, target: int = 0) -> Pattern:
    """What tells who has sent this, and to whom: PERIOD numbers from 0 to 250 that begin elsewhere for each pair."""
    return np.roll(_SCATTERED, 37 * source + 101 * target)


def addend(rank: int, np_: int) -> Pattern:
    """A rank's part of a sum: 1 to 4, and where there are more than 64 ranks, 0 in most places, others for each rank."""
    apart = -(-np_ // MOST_ADDENDS)
    kept = (np.arange(PERIOD) + rank) % apart == 0
    return np.where(kept, 1 + np.roll(_SCATTERED, 37 * rank) % LARGEST_ADDEND, 0)


def total(np_: int, block: int = 0) -> Pattern:
    """The sum of all ranks' parts; `block`: of those that `addend_for` gives."""
    return np.asarray(sum(addend_for(rank, np_, block) for rank in range(np_)))


def addend_for(rank: int, np_: int, block: int) -> Pattern:
    """A rank's part of the sum that the rank `block` will receive."""
    return np.roll(addend(rank, np_), 101 * block)


def fill(target: Carried, pattern: Carried) -> None:
    """Write the pattern, again and again, into `target`; both as the type's carrier."""
    whole = len(target) // PERIOD * PERIOD
    target[:whole].reshape(-1, PERIOD)[:] = pattern
    target[whole:] = pattern[: len(target) - whole]


def find_wrong(found: Carried, pattern: Carried) -> tuple[int, int | None]:
    """How many elements differ from the pattern, and the first one of them. Bits are compared, so NaN differs."""
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
    """`carrier`: the NumPy type that holds its bits, an unsigned one, so that comparing compares bits. `nccl`: nccl-tests' name for it.

    `mpi`: the name of MPI's type, and `sum`: of our own sum, which MPI lacks for the types of 16 bits.
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
        """The bits of whole numbers up to 256."""
        if self.name == "bfloat16":
            return (pattern.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return pattern.astype(self.name).view(self.carrier)

    def decode(self, bits: Any) -> float:
        """The number that these bits of one element are."""
        if self.name == "bfloat16":
            return float((np.array([bits], np.uint32) << 16).view(np.float32)[0])
        return float(np.array([bits], self.carrier).view(self.name)[0])


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float32", "float", np.uint32, "FLOAT"),
        Dtype("float64", "double", np.uint64, "DOUBLE"),
        # MPI 4 has no float16: the study that compared raw back ends counts it as MPI's weakness. Here it moves them as integers and adds by our sum.
        Dtype("float16", "half", np.uint16, "UINT16_T", "hvbench_sum_float16"),
        Dtype("bfloat16", "bfloat16", np.uint16, "UINT16_T", "hvbench_sum_bfloat16"),
    )
}


def find_dtype(name: str) -> Dtype:
    """The type of this name. Raises RequestError, suggesting the nearest name, for an unknown one."""
    if name not in DTYPES:
        raise RequestError(f"--dtype {name}: {suggest_name('type', name, DTYPES)}")
    return DTYPES[name]
