"""Finding steps: from marks, from steps.jsonl, and by the period of collectives."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.profiling.analyze.steps import StepLog, find_bytes_per_step, read_step_log, step_edges
from hvscale.profiling.read.events import Events, Recording, no_events
from tests.profiling.conftest import MakeRun
from tests.profiling.test_compare import NP, START_NS, STEPS, recorded


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


def test_steps_are_found_on_the_clock_of_the_messages() -> None:
    run = recorded()
    assert run.edges_ns is not None
    assert len(run.edges_ns) == STEPS + 1
    starts = run.recording.load().start_ns[~run.recording.load().bitwise]
    in_step = np.bincount(np.searchsorted(run.edges_ns, starts) - 1)
    assert in_step.tolist() == [2 * NP] * STEPS


def test_unrelated_all_reduces_give_no_steps() -> None:
    run = recorded()
    assert run.log is not None
    uneven = StepLog(run.log.seconds[:13] * 3, run.log.images[:13], run.log.exposed_seconds[:13])
    events = run.recording.load()
    in_a_burst = replace(events, start_ns=START_NS + (events.start_ns - START_NS) // 100)
    assert step_edges(replace(run.recording, events=in_a_burst), uneven) is None
    assert step_edges(replace(run.recording, overwritten=1), run.log) is None


def test_a_truncated_or_damaged_step_log(make_run: MakeRun) -> None:
    run = make_run(2)
    assert read_step_log(run) is None
    run.steps.write_text('{"seconds": 0.5, "images": 8}\n{"seconds": 0.25, "communication_seconds": 0.1}\n{"seco')
    log = read_step_log(run)
    assert log is not None
    assert log.seconds.tolist() == [0.5, 0.25]
    assert np.isnan(log.images[1])
    for damaged in ("{}", "[]", "nonsense", '{"seconds": -1}', '{"seconds": NaN}', '{"seconds": "x"}'):
        run.steps.write_text(f'{{"seconds": 1}}\n{damaged}\n{{"seconds": 3}}\n')
        log = read_step_log(run)
        assert log is not None
        assert log.seconds.tolist() == [1, 3]
        assert log.steps.tolist() == [1, 3]
        assert log.warning == f"{run.steps}: line 2 is damaged and was dropped"
