"""Numbers that check an all-reduce: fp32 holds their sum over all ranks exactly, in any order.

A rank sends `number % period(ranks) + offset(rank)` for each element's number.
"""

OFFSETS = 8
LONGEST_PERIOD = 1000
EXACT = 1 << 24  # fp32 holds all whole numbers up to this


def period(ranks: int) -> int:
    """After how many elements the numbers repeat."""
    return min(LONGEST_PERIOD, EXACT // ranks - OFFSETS)


def offset(rank: int) -> int:
    return rank % OFFSETS


def sum_of_offsets(ranks: int) -> int:
    """Of all ranks."""
    return sum(map(offset, range(ranks)))
