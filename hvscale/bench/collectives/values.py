"""What ranks send, and what they must receive: whole numbers that every type holds exactly, on any number of ranks.

bfloat16 has 8 binary digits, so it holds whole numbers up to 256 exactly, and every other type does too. Sums stay below that in any order of adding.
"""

import numpy as np
from numpy.typing import NDArray

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
