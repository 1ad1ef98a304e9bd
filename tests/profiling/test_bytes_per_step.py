"""Finding from a job's messages how many bytes it sends in each step, and its steps' ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.profiling.analyze.bytes_per_step import find_bytes_per_step, find_step_edges, split_by_bytes
from hvscale.profiling.read.events import Events, Recording, no_events


def periodic_recording(starts: list[float], sizes: list[int]) -> Recording:
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
def test_the_period_of_collectives_is_a_step(period: float, buckets: list[int], seed: int) -> None:
    """Each step computes for half of its time, then sends its messages in sequence with jitter."""
    noise = np.random.default_rng(seed)
    starts, sizes = [], []
    for step in range(60):
        for place, size in enumerate(buckets):
            at = step + 0.5 + 0.4 * place / len(buckets) + 0.01 * noise.standard_normal()
            starts.append(period * at)
            sizes.append(size)
    share, unit = find_bytes_per_step(periodic_recording(starts, sizes))
    assert unit == "steps/s"
    assert share is not None
    # Two equal steps may count as one: that halves every throughput, but keeps their ratios.
    steps = share / sum(buckets)
    assert round(steps) in (1, 2, 3)
    assert steps == pytest.approx(round(steps), rel=0.1)


def test_without_a_period_throughput_counts_bytes() -> None:
    noise = np.random.default_rng(1)
    starts = np.cumsum(noise.exponential(1.0, 400)).tolist()
    sizes = noise.integers(1, 1 << 20, 400).tolist()
    assert find_bytes_per_step(periodic_recording(starts, sizes)) == (None, "MiB/s")
    assert find_bytes_per_step(None) == (None, "MiB/s")


@pytest.mark.parametrize(("steps", "pause"), [(60, 0.02), (60, 0.05), (400, 0.2)])
def test_steps_of_very_different_lengths_have_three_messages(steps: int, pause: float) -> None:
    """Each step computes for 0.05 s and a random pause; its messages follow each other sooner."""
    noise = np.random.default_rng(1)
    waits = noise.exponential([[pause, pause / 10, pause / 10]] * steps)
    waits[:, 0] += 0.05
    assert find_bytes_per_step(periodic_recording(np.cumsum(waits).tolist(), [100] * waits.size)) == (300, "steps/s")


def test_an_order_of_sizes_repeats_after_each_step_whatever_the_pauses() -> None:
    noise = np.random.default_rng(1)
    starts = np.cumsum(noise.exponential(1.0, 400)).tolist()
    assert find_bytes_per_step(periodic_recording(starts, [300, 100, 7, 100] * 100)) == (507, "steps/s")


@settings(max_examples=25)
@given(count=st.integers(4, 60), steps=st.integers(15, 60), other=st.booleans(), seed=st.integers(0, 1 << 30))
def test_horovod_may_pack_the_gradients_of_each_step_into_other_messages(
    count: int, steps: int, other: bool, seed: int
) -> None:
    """`other`: one in ten steps sends a small message that is no gradient."""
    noise = np.random.default_rng(seed)
    gradients = noise.integers(1 << 10, 1 << 24, count)
    sizes: list[int] = []
    for step in range(steps):
        cuts = np.flatnonzero(noise.random(count - 1) < 0.5) + 1
        sizes += [int(part.sum()) for part in np.split(noise.permutation(gradients), cuts)]
        sizes += [8] if other and step % 10 == 9 else []
    starts = np.cumsum(noise.lognormal(0, 1, len(sizes))).tolist()
    assert find_bytes_per_step(periodic_recording(starts, sizes)) == (gradients.sum(), "steps/s")


@pytest.mark.parametrize("other", [[], [8], [8, 129, 4, 25, 161, 8]])
@pytest.mark.parametrize("layers", [1, 60])
def test_steps_end_before_the_longest_pauses(layers: int, other: list[int]) -> None:
    """Four different layers and some equal ones, packed anew in each step, after a broadcast.

    `other`: what the tenth step sends first, such as a loss after its negotiation, whose last
    message is the first one of every tenth step after that.
    """
    noise = np.random.default_rng(1)
    gradients = np.array([300, 5000, *[1000] * layers, 70, 20000])
    sizes, pauses, edges = [123456], [1.0], []
    for step in range(40):
        edges.append(len(sizes))
        sent = [int(part.sum()) for part in np.split(gradients, np.flatnonzero(noise.random(layers + 3) < 0.7) + 1)]
        sent = [*(other if step == 9 else other[-1:] if step % 10 == 9 else []), *sent]
        sizes += sent
        pauses += [0.3 + noise.exponential(0.1), *(0.002 + noise.exponential(0.005, len(sent) - 1))]
    starts = np.cumsum(pauses)
    found = find_step_edges(periodic_recording(starts.tolist(), sizes))
    assert found is not None
    ends_of_steps = np.array(ends(starts[[edge - 1 for edge in [*edges, len(sizes)]]].tolist()))
    assert np.abs(found[:, None] - ends_of_steps).min(axis=1).max() <= 1  # rounding
    assert np.diff(found).min() >= 0.3e9, "each step has the long pause"
    assert len(found) >= (37 if other else 40)


def test_messages_without_repetitions_have_no_step_edges() -> None:
    noise = np.random.default_rng(1)
    starts = np.cumsum(noise.exponential(1.0, 400)).tolist()
    assert find_step_edges(periodic_recording(starts, noise.integers(1, 1 << 20, 400).tolist())) is None
    assert find_step_edges(periodic_recording(starts[:9], [1, 2] * 4 + [1])) is None
    assert find_step_edges(periodic_recording(starts, [8] * 400)) is None
    assert find_step_edges(periodic_recording(starts, [1 << 62, 1] * 200)) is None  # the sums are no int64


@pytest.mark.parametrize("steps", range(6, 30))
def test_each_step_may_have_two_messages_at_any_times(steps: int) -> None:
    noise = np.random.default_rng(steps)
    starts = [0.0, *(1 + np.cumsum(noise.lognormal(-4, 1, 2 * steps)))]
    made = periodic_recording(starts, [50, *[1200, 4000] * steps])
    assert find_bytes_per_step(made) == (5200, "steps/s")
    edges = find_step_edges(made)
    assert edges is not None
    assert len(edges) >= steps


def test_a_period_in_time_finds_steps_whose_bytes_vary_a_little() -> None:
    noise = np.random.default_rng(1)
    starts = [step + 0.1 * place for step in range(60) for place in range(4)]
    sizes = 4000 + noise.integers(0, 100, len(starts))
    share, unit = find_bytes_per_step(periodic_recording(starts, sizes.tolist()))
    assert unit == "steps/s"
    assert share == pytest.approx(4 * 4050, rel=0.02)


def test_messages_in_the_first_tenth_belong_to_no_step() -> None:
    """Of 80 s, 8 are the start-up."""
    start_up = [*range(8), 7.95]
    starts, sizes = [*start_up, *range(8, 81)], [*[1000] * len(start_up), *[64] * 73]
    assert find_bytes_per_step(periodic_recording(starts, sizes)) == (64, "steps/s")


def test_a_job_may_stand_still_before_its_last_message() -> None:
    starts = [*np.arange(59).tolist(), 1e4]
    assert find_bytes_per_step(periodic_recording(starts, [300, 100, 7] * 20)) == (407, "steps/s")


def test_small_messages_between_large_ones_are_no_steps() -> None:
    starts = [0.5 * number for number in range(101)]
    share, _ = find_bytes_per_step(periodic_recording(starts, [1000, 1] * 50 + [1000]))
    assert share == pytest.approx(1001, rel=0.03)


@pytest.mark.parametrize(
    ("steps", "messages", "distance"), [(400, 10, 0.05), (400, 20, 0.04), (60, 40, 0.02), (60, 8, 0.05)]
)
def test_messages_at_equal_distances_within_a_step_are_no_steps(steps: int, messages: int, distance: float) -> None:
    starts = [step + distance * place for step in range(steps) for place in range(messages)]
    share, _ = find_bytes_per_step(periodic_recording(starts, [100] * len(starts)))
    assert share == pytest.approx(100 * messages, rel=5e-3)


@pytest.mark.parametrize("steps", [12, 20, 60])
def test_a_step_may_be_one_message(steps: int) -> None:
    assert find_bytes_per_step(periodic_recording(list(range(steps)), [100] * steps)) == (100, "steps/s")


def test_a_period_may_take_almost_half_of_the_time() -> None:
    """Three steps are left after the first tenth, of 2.004 s."""
    starts = [step + 0.001 * place for step in range(4) for place in range(5)]
    assert find_bytes_per_step(periodic_recording(starts, [100] * len(starts))) == (500, "steps/s")


@pytest.mark.parametrize(("messages", "unit"), [(9, "MiB/s"), (10, "steps/s")])
def test_a_period_needs_ten_messages(messages: int, unit: str) -> None:
    starts = [0.0, 0.0, *map(float, range(1, messages - 1))]
    assert find_bytes_per_step(periodic_recording(starts, [64] * messages))[1] == unit


def test_messages_at_one_moment_have_no_period() -> None:
    assert find_bytes_per_step(periodic_recording([1.0] * 10, [64] * 10)) == (None, "MiB/s")


def ends(seconds: list[float]) -> list[int]:
    return [round(1e9 * one) + 1_000_000 for one in seconds]


@pytest.mark.parametrize(
    ("bytes_per_step", "used", "last_messages"),
    [
        (300, 300, [2, 5, 8, 11]),
        (250, 250, [2, 4, 7, 9]),  # the rest is no whole step
        (None, 100, list(range(12))),
        (1200, 1200, [11]),
        (1201, 1201, []),
        (100 / 3, 100 / 3, [message for message in range(12) for _ in range(3)]),
    ],
)
def test_steps_end_with_the_message_that_completes_their_bytes(
    bytes_per_step: float | None, used: float, last_messages: list[float]
) -> None:
    made = periodic_recording(list(range(12)), [100] * 12)
    found, times = split_by_bytes(made, bytes_per_step)
    assert (found, times.tolist()) == (used, ends(last_messages))


def test_messages_of_different_sizes_are_split_by_their_mean() -> None:
    found, times = split_by_bytes(periodic_recording(list(range(10)), [50, 150] * 5), None)
    assert (found, times.tolist()) == (100, ends([1, 1, 3, 3, 5, 5, 7, 7, 9, 9]))


@pytest.mark.parametrize(("bytes_per_step", "used"), [(300, 300), (None, 0)])
def test_fewer_than_ten_messages_are_not_split(bytes_per_step: float | None, used: float) -> None:
    found, times = split_by_bytes(periodic_recording(list(range(9)), [100] * 9), bytes_per_step)
    assert (found, times.tolist()) == (used, [])


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 1 << 20)), min_size=10, max_size=60))
def test_any_messages_have_steps_with_bytes_or_none(messages: list[tuple[float, int]]) -> None:
    made = periodic_recording([start for start, _ in messages], [size for _, size in messages])
    share, unit = find_bytes_per_step(made)
    assert (share is None) == (unit == "MiB/s")
    assert share is None or share > 0
    edges = find_step_edges(made)
    assert edges is None or (np.diff(edges) >= 0).all()
    assert len(split_by_bytes(made, share)[1]) <= sum(size for _, size in messages)
