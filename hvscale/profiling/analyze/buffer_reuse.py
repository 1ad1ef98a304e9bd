"""Buffer reuse: the hit rate of a simulated cache of registered (or IPC-mapped) buffers."""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

# The number of CUDA IPC handles that MVAPICH2 caches by default (MV2_CUDA_IPC_MAX_CACHE_ENTRIES),
# and typical sizes of registration caches.
CAPACITIES = (16, 64, 1024, 8192)


class HitRate(BaseModel):
    """The hit rate over the messages of all ranks; None without messages.

    `capacity_entries`: the number of buffers that the cache of one rank holds.
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
    """Replays messages, sorted by time, against one LRU cache per rank.

    A message hits if its start address is cached with at least its size; otherwise the cache takes
    its buffer. Messages without bytes or without a buffer do not count.
    """
    has_buffer = (size > 0) & (address > 0)
    messages = list(
        zip(rank[has_buffer].tolist(), address[has_buffer].tolist(), size[has_buffer].tolist(), strict=True)
    )
    rates = []
    for capacity in capacities:
        hits = _count_hits(messages, capacity)
        rate = hits / len(messages) if messages else None
        rates.append(HitRate(capacity_entries=capacity, messages=len(messages), hits=hits, hit_rate=rate))
    return rates


def _count_hits(messages: list[tuple[int, int, int]], capacity: int) -> int:
    caches: dict[int, OrderedDict[int, int]] = {}
    hits = 0
    for rank, address, size in messages:
        cache = caches.setdefault(rank, OrderedDict())
        cached_size = cache.pop(address, 0)
        hits += cached_size >= size
        cache[address] = max(cached_size, size)
        if len(cache) > capacity:
            cache.popitem(last=False)
    return hits
