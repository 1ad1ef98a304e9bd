"""Steps found by what collectives send."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.profiling.analyze.steps import find_bytes_per_step
from hvscale.profiling.read.events import Events, Recording, no_events


def recording(starts: list[float], sizes: list[int]) -> Recording:
    """All-reduces of one rank, each of 1 ms."""
    count = len(starts)
    fields = {
        **vars(no_events()),
        "operations": ("allreduce",),
        "rank": np.zeros(count, np.int32),
        "operation": np.zeros(count, np.uint8),
        "bytes": np.array(sizes, np.int64),
        "start_ns": (np.array(starts) * 1e9).astype(np.int64),
        "duration_ns": np.full(count, 1_000_000, np.int64),
        "communicator_size": np.full(count, 2, np.int32),
        "bitwise": np.zeros(count, np.bool_),
        "thread": np.zeros(count, np.int64),
    }
    return Recording("hvprof", Events(**fields), 2, [0])


@settings(max_examples=25)
@given(
    period=st.floats(0.05, 2.0),
    buckets=st.lists(st.integers(1 << 16, 1 << 22), min_size=1, max_size=40),
    seed=st.integers(0, 99),
)
def test_the_period_of_collectives_is_found(period: float, buckets: list[int], seed: int) -> None:
    """Half of a step computes; in the other half its messages go, one after the other, with some
    jitter.
    """
    noise = np.random.default_rng(seed)
    starts, sizes = [], []
    for step in range(60):
        for place, size in enumerate(buckets):
            at = step + 0.5 + 0.4 * place / len(buckets) + 0.01 * noise.standard_normal()
            starts.append(period * at)
            sizes.append(size)
    share, unit = find_bytes_per_step(recording(starts, sizes))
    assert unit == "steps/s"
    assert share is not None
    # Two steps that are alike may count as one: that halves every throughput, and leaves their
    # ratios.
    steps = share / sum(buckets)
    assert round(steps) in (1, 2, 3)
    assert steps == pytest.approx(round(steps), rel=0.1)


def test_messages_without_a_period_count_by_their_bytes() -> None:
    noise = np.random.default_rng(1)
    starts = np.cumsum(noise.exponential(1.0, 400)).tolist()
    sizes = noise.integers(1, 1 << 20, 400).tolist()
    assert find_bytes_per_step(recording(starts, sizes)) == (None, "MiB/s")
    assert find_bytes_per_step(None) == (None, "MiB/s")
