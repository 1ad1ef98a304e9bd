"""Buffer reuse: how often a cache of registered (or IPC-mapped) buffers would have had the buffer
of a message already.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

# CUDA IPC handles that MVAPICH2 caches by default (MV2_CUDA_IPC_MAX_CACHE_ENTRIES), and sizes
# around registration caches in use.
CAPACITIES = (16, 64, 1024, 8192)


class HitRate(BaseModel):
    """`capacity_entries`: buffers that the cache of one rank holds; `hit_rate`: of the messages of
    all ranks, None without messages.
    """

    capacity_entries: int
    messages: int
    hits: int
    hit_rate: float | None


def hit_rates(
    rank: NDArray[np.int64],
    address: NDArray[np.uint64],
    size: NDArray[np.int64],
    capacities: tuple[int, ...] = CAPACITIES,
) -> list[HitRate]:
    """Replay messages, in order of time, against a cache for each rank that evicts the least
    recently used buffer.

    A message hits when its start address is cached with at least its size; otherwise its buffer
    enters. Messages without bytes touch no buffer and do not count.
    """
    has_buffer = (size > 0) & (address > 0)
    messages = list(
        zip(rank[has_buffer].tolist(), address[has_buffer].tolist(), size[has_buffer].tolist(), strict=True)
    )
    rates = []
    for capacity in capacities:
        hits = _hits(messages, capacity)
        rate = hits / len(messages) if messages else None
        rates.append(HitRate(capacity_entries=capacity, messages=len(messages), hits=hits, hit_rate=rate))
    return rates


def _hits(messages: list[tuple[int, int, int]], capacity: int) -> int:
    caches: dict[int, OrderedDict[int, int]] = {}
    hits = 0
    for rank, address, size in messages:
        cache = caches.setdefault(rank, OrderedDict())
        known = cache.pop(address, 0)
        hits += known >= size
        cache[address] = max(known, size)
        if len(cache) > capacity:
            cache.popitem(last=False)
    return hits
