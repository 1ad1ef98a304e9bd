"""Horovod's loop, against what can be computed by hand and what holds for every job."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.prediction.model.costs import Burst, HorovodSettings
from hvscale.prediction.model.horovod_loop import Simulation, simulate
from hvscale.prediction.model.job import PredictedJob
from tests.prediction.model.jobs import SimpleCosts, make_job, regular_job

MB = 1_000_000


def run(job: PredictedJob, costs: SimpleCosts, np_: int = 2, **knobs: float) -> Simulation:
    fields = {"cycle_seconds": 1e-3, "fusion_bytes": 64 * MB, **knobs}
    return simulate(job, HorovodSettings(**fields), costs, np_, chains=3, steps=4)  # type: ignore[arg-type]


def test_one_rank_never_waits() -> None:
    job = regular_job([MB] * 5)
    found = run(job, SimpleCosts(), np_=1)
    assert found.step == pytest.approx(0.06)
    assert len(found.traffic.bytes) == 0


def test_a_loop_without_a_cycle_time_and_without_agreements_ends() -> None:
    job = regular_job([MB] * 5, interval=0.01)
    found = run(job, SimpleCosts(agreement=0.0), cycle_seconds=0.0)
    assert found.step == pytest.approx(0.061, abs=1e-5)  # the last tensor, and 1 MB on the wire
    assert found.messages_per_step == 5


def test_a_message_costs_what_the_network_takes() -> None:
    job = regular_job([10 * MB], interval=0.05)
    found = run(job, SimpleCosts(bytes_per_second=1e9))
    # The tensor, less than two cycles until all ranks saw it, and 10 ms on the wire.
    assert (found.step >= 0.06 + 0.01).all()
    assert (found.step <= 0.06 + 0.01 + 2.1e-3).all()
    assert found.wire == pytest.approx(0.01)


def test_messages_that_computation_hides_are_not_exposed() -> None:
    job = regular_job([1000] + [8] * 9, interval=0.01)
    found = run(job, SimpleCosts(start_seconds=1e-3))
    assert found.wire.mean() < 1.1e-3
    assert found.messages_per_step == 10


def test_gradients_pile_up_behind_a_long_message() -> None:
    job = regular_job([MB] * 20, interval=1e-3)
    blocked = run(job, SimpleCosts(bytes_per_second=1e8))
    assert blocked.messages_per_step < 8
    assert blocked.traffic.bytes.max() > 5 * MB


def test_a_stream_does_not_block_the_loop() -> None:
    job = regular_job([MB] * 20, interval=2e-3)
    costs = SimpleCosts(bytes_per_second=1e8, blocking=False)
    assert run(job, costs).messages_per_step > run(job, SimpleCosts(bytes_per_second=1e8)).messages_per_step
    assert run(job, costs).wire.mean() == pytest.approx(20 * 0.01 - 0.04 + 2e-3, rel=0.05)


def test_a_host_far_ahead_of_its_gpu_sends_one_message_over_a_stream() -> None:
    """MPI's messages wait for the GPU: each tensor has gone before the next one is ready."""
    job = regular_job([MB] * 6, interval=0.01)
    ahead = replace(job, enqueued=np.full_like(job.ready, 1e-3))
    found = run(ahead, SimpleCosts(blocking=False))
    assert found.traffic.tensors.tolist() == [6] * found.step.size
    # The last tensor, and 6 MB on the wire.
    assert found.timeline.messages == [pytest.approx((0.07, 0.076, 6 * MB, 6))]
    assert found.step == pytest.approx(0.076)
    assert run(ahead, SimpleCosts(blocking=True)).messages_per_step == 6
    assert run(job, SimpleCosts(blocking=False)).messages_per_step == 6


def test_a_message_of_a_stream_waits_for_its_own_tensors_only() -> None:
    job = regular_job([MB] * 6, interval=0.01)
    enqueued = np.tile([1e-3] * 3 + [0.025] * 3, (2, 4, 1))
    found = run(replace(job, enqueued=enqueued), SimpleCosts(blocking=False))
    assert found.timeline.messages == [pytest.approx((0.04, 0.043, 3 * MB, 3)), pytest.approx((0.07, 0.073, 3 * MB, 3))]
    assert found.hidden == pytest.approx(0.003)
    assert found.wire == pytest.approx(0.003)


def test_the_fusion_threshold_limits_messages_of_several_tensors() -> None:
    job = make_job(np.full((2, 3, 6), 0.05), [4 * MB, MB, MB, MB, 5 * MB, MB])
    found = run(job, SimpleCosts(), fusion_bytes=3 * MB)
    # Greedy in order: a tensor above the threshold goes alone.
    assert found.traffic.bytes[:4].tolist() == [4 * MB] * 3 + [3 * MB]
    assert found.messages_per_step == 4
    assert run(job, SimpleCosts(), fusion_bytes=64 * MB).messages_per_step == 1
    assert run(job, SimpleCosts(), fusion_bytes=0).messages_per_step == 6


def test_only_tensors_of_one_type_share_a_message() -> None:
    job = make_job(np.full((2, 3, 4), 0.05), [MB] * 4, dtypes=["float32", "float16"] * 2)
    found = run(job, SimpleCosts())
    assert found.messages_per_step == 2
    assert set(found.traffic.tensors.tolist()) == {2}


def test_a_group_goes_together() -> None:
    ready = np.tile([0.01, 0.02, 0.03, 0.04], (2, 3, 1))
    job = make_job(ready, [MB] * 4, groups=["one", None, "one", None])
    found = run(job, SimpleCosts(start_seconds=1e-4))
    assert sorted(found.traffic.tensors.tolist()) == [1] * 24 + [2] * 12


def test_a_burst_passes_at_once_and_has_to_refill() -> None:
    job = regular_job([MB], interval=0.1)
    slow, burst = SimpleCosts(bytes_per_second=1e7), SimpleCosts(bytes_per_second=1e7, burst=Burst(MB / 2, 1e7))
    assert run(job, slow).wire == pytest.approx(0.1)
    assert run(job, burst).wire == pytest.approx(0.05)
    often = make_job(np.full((2, 3, 2), 1e-4), [MB, MB], after=0.1)
    assert run(often, burst, fusion_bytes=0).wire.mean() == pytest.approx(0.15, rel=0.01)


def test_the_slowest_rank_holds_up_the_others() -> None:
    ready = np.tile([[0.1]], (2, 4, 1))
    ready[1] += 0.05
    found = run(make_job(ready, [8]), SimpleCosts())
    assert found.slowest_rank == pytest.approx(0.025)
    assert found.compute == pytest.approx(0.01 + 0.125)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(4, 3 * MB), min_size=1, max_size=12),
    ranks=st.integers(1, 3),
    np_=st.integers(2, 9),
    threshold=st.integers(0, 5 * MB),
    cycle=st.floats(0, 5e-3),
    blocking=st.booleans(),
    copy=st.sampled_from([0.0, 1e-9]),
    seed=st.integers(0, 100),
)
def test_every_step_sends_every_tensor_once(
    sizes: list[int], ranks: int, np_: int, threshold: int, cycle: float, blocking: bool, copy: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    ready = np.sort(generator.uniform(0, 0.05, (ranks, 5, len(sizes))), axis=2)
    job = make_job(ready, sizes)
    costs = SimpleCosts(start_seconds=1e-5, bytes_per_second=1e8, blocking=blocking, copy=copy)
    found = run(job, costs, np_, fusion_bytes=threshold, cycle_seconds=cycle)
    assert found.traffic.bytes.sum() == found.step.size * sum(sizes)
    assert found.traffic.tensors.sum() == found.step.size * len(sizes)
    limit = -(-threshold // 512) * 512
    assert (found.traffic.bytes[found.traffic.tensors > 1] <= limit).all()
    parts = found.compute + found.slowest_rank + found.agreement + found.wire + found.copies
    assert found.step == pytest.approx(parts)
    for part in (found.slowest_rank, found.wire, found.copies, found.agreement):
        assert (part >= -1e-9).all()
    slower = SimpleCosts(start_seconds=1e-5, bytes_per_second=1e7, blocking=blocking, copy=copy)
    later = run(job, slower, np_, fusion_bytes=threshold, cycle_seconds=cycle)
    # Other messages shift the loop's wake-ups, by up to a period each.
    period = max(cycle, costs.agreement)
    assert later.step.mean() >= found.step.mean() - 2 * period - 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_the_timeline_is_the_step_nearest_to_the_mean(seed: int) -> None:
    jitter = np.random.default_rng(seed).uniform(0.01, 0.2, (2, 6, 1))
    job = make_job(np.tile(jitter, (1, 1, 5)), [MB] * 5)
    found = simulate(job, HorovodSettings(cycle_seconds=0.01), SimpleCosts(), 2, chains=3, steps=12)
    starts = [start for start, *_ in found.timeline.messages]
    assert starts == sorted(starts)
    assert sum(size for *_, size, _ in found.timeline.messages) == 5 * MB
    end = max(end for _, end, *_ in found.timeline.messages)
    assert abs(end - found.step.mean()) == pytest.approx(abs(found.step[0] - found.step.mean()).min())
