"""Horovod's loop, second by second: steps that can be worked out by hand.

Links pass one byte a second, and an agreement takes a second. Without a cycle time the loop wakes
up at each whole second, and all ranks see a tensor when the slowest enqueues it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hvscale.prediction.model.computation import Draw
from hvscale.prediction.model.costs import Burst, HorovodSettings
from hvscale.prediction.model.horovod_loop import Exposed, Loop, Simulation, Units, simulate
from hvscale.prediction.model.job import PredictedJob
from tests.prediction.model.jobs import SimpleCosts, make_job

Floats = NDArray[np.float64]
NO_FUSION = HorovodSettings(cycle_seconds=0, fusion_bytes=0)
FUSION = HorovodSettings(cycle_seconds=0, fusion_bytes=512)
COSTS = SimpleCosts(bytes_per_second=1, agreement=1)


@dataclass(frozen=True)
class GrowingCosts(SimpleCosts):
    """SimpleCosts for two ranks; each further rank sends and takes as much again."""

    def message_seconds(self, bytes: Floats, np: int, burst: Floats | float = 0.0) -> Floats:
        return (self.sent_bytes(bytes, np) - burst) / self.bytes_per_second

    def sent_bytes(self, bytes: Floats, np: int) -> Floats:
        return (np - 1) * bytes

    def agreement_seconds(self, np: int) -> float:
        return (np - 1) * self.agreement

    def copy_seconds(self, bytes: Floats, np: int) -> Floats:
        return (np - 1) * super().copy_seconds(bytes, np)


def job_of(ready: Sequence[float], sizes: list[int], **fields: list[str] | list[str | None]) -> PredictedJob:
    """Two ranks which enqueue the tensors at the same times in each of two steps."""
    return make_job(np.tile(np.array(ready), (2, 2, 1)), sizes, after=0.0, **fields)  # type: ignore[arg-type]


def one_step(
    ready: Sequence[float],
    sizes: list[int],
    *,
    costs: SimpleCosts = COSTS,
    settings: HorovodSettings = NO_FUSION,
    np_: int = 2,
    **fields: list[str] | list[str | None],
) -> Simulation:
    """The simulation of a job whose steps are all the same."""
    found = simulate(job_of(ready, sizes, **fields), settings, costs, np_, chains=2, steps=3)
    for part in (found.step, found.compute, found.slowest_rank, found.wire, found.copies, found.hidden):
        assert part.shape == (2, 3)
        assert (part == part[0, 0]).all()
    return found


def messages(found: Simulation) -> list[tuple[float, float]]:
    """When the messages of the last step start and end."""
    return [(start, end) for start, end, *_ in found.timeline.messages]


def parts(found: Simulation) -> dict[str, float]:
    names = ("step", "agreement", "wire", "copies", "hidden")
    return {name: float(getattr(found, name)[0, 0]) for name in names}


def test_a_message_follows_the_agreement_after_the_tensor() -> None:
    """The second tensor comes during the first message, and half of that is exposed."""
    found = one_step([2, 3.5], [1, 2])
    assert found.timeline.ready.tolist() == [2, 3.5]
    assert found.timeline.agreements == [(2, 3), (4, 5)]
    assert found.timeline.messages == [(3, 4, 1, 1), (5, 7, 2, 1)]
    assert parts(found) == {"step": 7, "agreement": 1, "wire": 2.5, "copies": 0, "hidden": 0.5}
    assert found.traffic.bytes.tolist() == [1, 1, 2, 2] * 3
    assert found.traffic.tensors.tolist() == [1] * 12
    assert found.traffic.tensors.dtype == np.int64
    assert found.messages_per_step == 2


def test_more_ranks_agree_and_send_for_longer() -> None:
    """As above, with twice the time for each agreement and message."""
    costs = GrowingCosts(bytes_per_second=1, agreement=1)
    found = one_step([2, 3.5], [1, 2], costs=costs, np_=3)
    assert found.timeline.agreements == [(2, 4), (6, 8)]
    assert messages(found) == [(4, 6), (8, 12)]
    copied = one_step([2, 2], [1, 2], costs=replace(costs, copy=1.0), settings=FUSION, np_=3)
    # An agreement of 2 s, copies of 6 s, and 6 s on the wire.
    assert parts(copied) == {"step": 16, "agreement": 2, "wire": 6, "copies": 6, "hidden": 0}
    # The link lets 4 bytes pass at once: both that the first message sends, and half of the second.
    quick = one_step([2, 2], [1, 2], costs=replace(costs, burst=Burst(4, 1)), np_=3)
    assert messages(quick) == [(4, 4), (4, 6)]


def test_ranks_that_share_a_core_take_time_from_messages_while_they_enqueue() -> None:
    """Three tensors of 1 s in 6 s leave half of the core to messages, until all are enqueued."""
    found = one_step([2, 3, 8], [1, 3, 2], costs=replace(COSTS, enqueue=1.0))
    # Of the second message, 1 byte passes at half the speed.
    assert messages(found) == [(3, 5), (6, 10), (11, 13)]
    assert parts(found) == {"step": 13, "agreement": 1, "wire": 4, "copies": 0, "hidden": 4}
    # They need 11.4 s, which leaves a twentieth of the core if the last is enqueued after 14 s.
    busy = one_step([2, 3, 8], [1, 3, 2], costs=replace(COSTS, enqueue=3.8))
    assert busy.timeline.ready.tolist() == pytest.approx([2, 4, 14])
    assert busy.timeline.messages[0][:2] == pytest.approx((3, 14 + 0.45))


def test_a_stream_sends_one_message_after_the_other_while_the_loop_goes_on() -> None:
    costs = replace(COSTS, blocking=False)
    found = one_step([2, 2, 3], [1, 2, 1], costs=costs)
    assert found.timeline.agreements == [(2, 3), (3, 4)]
    assert messages(found) == [(3, 4), (4, 6), (6, 7)]
    assert parts(found) == {"step": 7, "agreement": 0, "wire": 4, "copies": 0, "hidden": 0}


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (3.5, {"step": 11, "agreement": 1, "wire": 5, "copies": 1.5, "hidden": 0.5}),
        (6, {"step": 11, "agreement": 1, "wire": 3, "copies": 1, "hidden": 3}),
        (8.5, {"step": 11, "agreement": 1, "wire": 1, "copies": 0.5, "hidden": 5.5}),
        (20, {"step": 22, "agreement": 1, "wire": 1, "copies": 0, "hidden": 6}),
    ],
)
def test_what_follows_the_last_tensor_is_exposed(last: float, expected: dict[str, float]) -> None:
    """Two tensors are copied from 3 to 4 s, sent until 8 s and copied until 9 s.

    The last tensor goes alone, without copies, after another agreement.
    """
    found = one_step([2, 2, last], [2, 2, 1], costs=replace(COSTS, copy=0.5), settings=FUSION)
    assert messages(found)[0] == (3, 9)
    assert found.timeline.messages[-1][2:] == (1, 1)
    assert parts(found) == expected


def test_a_link_lets_what_it_saved_up_pass_at_once() -> None:
    """It saves up to 4 bytes, one in a second without messages."""
    costs = replace(COSTS, burst=Burst(4, 1))
    job = job_of([2, 2, 5, 20], [6, 6, 6, 3])
    loop = Loop(job, NO_FUSION, costs, 2, 1)
    ready = np.array([[2.0, 2, 5, 20]])
    loop.step(Draw(ready, ready.max(axis=1)), np.random.default_rng(0))
    # 4 bytes are saved for the first message, none for the second, and one during an agreement.
    assert [one[:2] for one in loop.timeline.messages] == [(3, 5), (5, 11), (12, 17), (21, 21)]
    # The last message left one byte, and three more are saved until the next step's first message.
    loop.step(Draw(ready, ready.max(axis=1)), np.random.default_rng(0))
    assert loop.timeline.messages[0][:2] == (3, 5)
    # Without computation, a byte is saved from step to step, during an agreement.
    early = np.zeros((1, 4))
    loop = Loop(job, NO_FUSION, costs, 2, 1)
    for _ in range(2):
        loop.step(Draw(early, early.max(axis=1)), np.random.default_rng(0))
    assert [one[:2] for one in loop.timeline.messages] == [(1, 6), (6, 12), (12, 18), (18, 21)]


@pytest.mark.parametrize(
    ("threshold", "counts"),
    [(0, [1] * 6), (1, [1] * 6), (512, [1] * 6), (513, [2] * 3), (1024, [2] * 3), (1025, [3] * 2), (4096, [6])],
)
def test_the_threshold_is_rounded_up_to_a_multiple_of_512_bytes(threshold: int, counts: list[int]) -> None:
    found = one_step([1] * 6, [512] * 6, settings=HorovodSettings(cycle_seconds=0, fusion_bytes=threshold))
    assert [tensors for *_, tensors in found.timeline.messages] == counts
    assert [size for _, _, size, _ in found.timeline.messages] == [512 * count for count in counts]


def test_a_cycle_begins_a_cycle_time_after_the_one_before() -> None:
    """Ranks look at their queues at random moments, up to a cycle of 4 s apart."""
    settings = replace(NO_FUSION, cycle_seconds=4)
    loop = Loop(job_of([8.5, 9], [1, 1]), settings, COSTS, 2, 1)
    ready = np.array([[8.5, 17.0]])
    generator = np.random.default_rng(0)
    shift = 4 * np.random.default_rng(0).random()
    end = loop.step(Draw(ready, ready.max(axis=1)), generator)[0, 0]
    assert 2 < shift < 3
    # Seen at 11 s and at 19.5 s: found at 12 s and at 20 s.
    assert loop.timeline.agreements == [(12, 13), (20, 21)]
    assert end == 22
    # The next cycle begins at 24 s.
    assert loop.tick.tolist() == [2]
    assert loop.link_free.tolist() == [0]


def test_a_rank_alone_goes_on_after_its_last_tensor() -> None:
    """It sends nothing."""
    loop = Loop(job_of([8.5, 9], [1, 1]), NO_FUSION, COSTS, 1, 2)
    ready = np.array([[1.0, 3.0], [2.0, 1.0]])
    found = loop.step(Draw(ready, np.array([3.0, 1.5])), np.random.default_rng(0))
    # Step, computing, the slowest rank's excess; no messages.
    assert found.tolist() == [[3, 2], [3, 1.5], [0, 0.5], [0, 0], [0, 0], [0, 0]]
    assert loop.tick.tolist() == loop.link_free.tolist() == [-3, -2]
    assert loop.timeline.ready.tolist() == [1, 3]
    assert not loop.traffic


def test_the_timeline_is_that_of_the_first_job() -> None:
    """The second job sends its last tensor when the first one is through."""
    loop = Loop(job_of([1, 2], [1, 1]), NO_FUSION, COSTS, 2, 2)
    ready = np.array([[1.0, 1.0], [5.0, 8.0]])
    found = loop.step(Draw(ready, ready.max(axis=1)), np.random.default_rng(0))
    assert loop.timeline.agreements == [(1, 2)]
    assert loop.timeline.messages == [(2, 3, 1, 1), (3, 4, 1, 1)]
    assert found[0].tolist() == [4, 10]
    # The first job waits no longer than it needs to, and both begin their next steps then.
    assert loop.tick.tolist() == loop.link_free.tolist() == [0, 0]


def test_tensors_of_one_type_go_before_those_of_another() -> None:
    """In the order of the first tensor of each type."""
    found = one_step([1] * 4, [1, 2, 3, 4], settings=FUSION, dtypes=["half", "float", "float", "half"])
    assert found.timeline.messages == [(2, 7, 5, 2), (7, 12, 5, 2)]
    found = one_step([1] * 4, [1, 2, 3, 4], settings=FUSION, dtypes=["half", "float", "float", "double"])
    assert found.timeline.messages == [(2, 3, 1, 1), (3, 8, 5, 2), (8, 12, 4, 1)]


def test_a_group_is_one_unit_that_is_ready_with_its_last_tensor() -> None:
    groups: list[str | None] = [None, "g", "h", "g", "h"]
    job = job_of([1, 2, 3, 4, 5], [1, 2, 4, 8, 16], dtypes=["float", "float", "half", "float", "half"], groups=groups)
    units = Units(job)
    assert units.bytes.tolist() == [1, 10, 20]
    assert units.tensors.tolist() == [1, 2, 2]
    assert [mask.tolist() for mask in units.by_dtype] == [[True, True, False], [False, False, True]]
    times = np.array([[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 9.0, 8.0, 7.0, 6.0]])
    assert units.ready(times).tolist() == [[1, 4, 5], [1, 9, 8]]
    alone = Units(job_of([1, 2], [3, 4]))
    assert alone.bytes.tolist() == [3, 4]
    assert alone.ready(times[:, :2]).tolist() == times[:, :2].tolist()


def test_a_group_larger_than_the_threshold_is_one_message() -> None:
    found = one_step([1, 2, 3], [1, 2, 4], groups=["g", None, "g"])
    assert found.timeline.messages == [(3, 5, 2, 1), (6, 11, 5, 2)]


def test_what_of_an_interval_is_exposed() -> None:
    exposed = Exposed(np.array([2.0, 2.0, 2.0]))
    assert exposed.part(np.array([0.0, 1.0, 3.0]), np.array([1.0, 4.0, 4.0])).tolist() == [0, 2, 1]
    exposed.messages += np.array([5.0, 5.0, 1.0])
    exposed.wire += 2
    exposed.copies += 1
    assert exposed.hidden.tolist() == [2, 2, 0]


def test_a_seed_gives_the_same_steps_again() -> None:
    job = make_job(np.random.default_rng(0).random((2, 5, 3)), [1, 1, 1])
    first, again, other = (simulate(job, HorovodSettings(), COSTS, 3, seed=seed).step for seed in (0, 0, 1))
    assert first.shape == (64, 32)
    assert (first == again).all()
    assert (first != other).any()


@given(
    sizes=st.lists(st.integers(1, 600), min_size=1, max_size=8),
    threshold=st.sampled_from([0, 512, 1024]),
    blocking=st.booleans(),
    burst=st.sampled_from([None, Burst(300, 0.5)]),
    types=st.sampled_from([["float"], ["float", "half"]]),
    seed=st.integers(0, 1000),
)
def test_jobs_do_not_depend_on_those_simulated_with_them(
    sizes: list[int], threshold: int, blocking: bool, burst: Burst | None, types: list[str], seed: int
) -> None:
    costs = replace(COSTS, blocking=blocking, burst=burst, copy=0.25)
    job = job_of([0.0] * len(sizes), sizes, dtypes=(types * len(sizes))[: len(sizes)])
    settings = HorovodSettings(cycle_seconds=0, fusion_bytes=threshold)
    together = Loop(job, settings, costs, 2, 3)
    alone = [Loop(job, settings, costs, 2, 1) for _ in range(3)]
    generator = np.random.default_rng(seed)
    for _ in range(3):
        ready = generator.integers(0, 2000, (3, len(sizes))).astype(float)
        found = together.step(Draw(ready, ready.min(axis=1)), generator)
        for row, loop in enumerate(alone):
            own = ready[row : row + 1]
            assert loop.step(Draw(own, own.min(axis=1)), generator)[:, 0] == pytest.approx(found[:, row])
            assert together.burst[row] == pytest.approx(loop.burst[0])
        assert together.timeline.messages == alone[0].timeline.messages
        assert together.timeline.agreements == alone[0].timeline.agreements
