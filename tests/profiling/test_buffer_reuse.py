"""The hit rate of a cache of buffers, for sequences with known hits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.profiling.analyze.buffer_reuse import CAPACITIES, HitRate, hit_rates

Message = tuple[int, int, int]  # rank, address, bytes


def hits(messages: list[Message], capacity: int) -> int:
    columns = np.array(messages, np.int64).reshape(-1, 3)
    (rate,) = hit_rates(columns[:, 0], columns[:, 1].astype(np.uint64), columns[:, 2], (capacity,))
    return rate.hits


@pytest.mark.parametrize(
    ("messages", "capacity", "expected"),
    [
        ([(0, 64, 8), (0, 64, 8), (0, 64, 8)], 1, 2),
        ([(0, 64, 8), (0, 128, 8), (0, 64, 8), (0, 128, 8)], 1, 0),
        ([(0, 64, 8), (0, 128, 8), (0, 64, 8), (0, 128, 8)], 2, 2),
        ([(0, 64, 8), (0, 64, 4), (0, 64, 16), (0, 64, 16)], 4, 2),
        ([(0, 64, 8), (1, 64, 8), (1, 64, 8)], 4, 1),
        ([(0, 64, 0), (0, 0, 8), (0, 64, 0)], 4, 0),
        ([(0, 1, 1), (0, 1, 1)], 4, 1),  # the smallest buffer
        ([(0, 64, 8), (0, 64, 4), (0, 64, 8)], 4, 2),  # a part of a buffer leaves all of it cached
        # The least recently used buffer is evicted: 64, 128, 64 again, then 192 evicts 128.
        ([(0, 64, 8), (0, 128, 8), (0, 64, 8), (0, 192, 8), (0, 64, 8), (0, 128, 8)], 2, 2),
    ],
)
def test_hits_of_a_known_sequence(messages: list[Message], capacity: int, expected: int) -> None:
    assert hits(messages, capacity) == expected


def test_each_capacity_has_a_rate_over_all_messages_with_a_buffer() -> None:
    rank, address = np.array([0, 0, 0, 0, 1, 1]), np.array([64, 128, 64, 128, 64, 0], np.uint64)
    size = np.array([8, 8, 8, 8, 0, 8])
    assert hit_rates(rank, address, size, (1, 2)) == [
        HitRate(capacity_entries=1, messages=4, hits=0, hit_rate=0),
        HitRate(capacity_entries=2, messages=4, hits=2, hit_rate=0.5),
    ]
    assert tuple(rate.capacity_entries for rate in hit_rates(rank, address, size)) == CAPACITIES


def test_no_messages_give_no_rate() -> None:
    nothing = np.empty(0, np.int64)
    assert [rate.hit_rate for rate in hit_rates(nothing, nothing.astype(np.uint64), nothing)] == [None] * 4


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 12), st.integers(1, 3))))
def test_a_larger_cache_never_hits_less(messages: list[Message]) -> None:
    counts = [hits(messages, capacity) for capacity in (1, 2, 4, 100)]
    assert counts == sorted(counts)
