"""The costs of messages by the formula, for parameters in round numbers."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.launch.placements._link_shaping import burst_bytes
from hvscale.prediction.model.costs import Burst
from hvscale.prediction.model.measured_costs import ALGORITHMS, Formula, Handling, MeasuredCosts, factor

Floats = NDArray[np.float64]
# On four ranks, a ring sends 6 messages and 1.5 times all bytes one after the other.
FORMULA = Formula(
    algorithm="ring",
    start_seconds=1e-3,
    copy_seconds_per_byte=4e-9,
    seconds_per_byte=1e-8,
    crowding_exponent=2.0,
    outside_caches=3.0,
)
MB = np.array([1e6])
# Four ranks on two cores.
COSTS = MeasuredCosts(
    formula=FORMULA,
    covariance=np.zeros((5, 5)),
    agreement_start_seconds=1e-3,
    agreement_exponent=2.0,
    factors=((1e4, 1.0), (1e8, 3.0)),
    burst=Burst(5e5, 1e8),
    largest_np=4,
    largest_bytes=1e6,
    description="a test",
    cores=2,
    handling=Handling(1e-3, 1e-9),
)


# Six starts of 1 ms, where two ranks share a core: in a ring, three quarters of the exponent count.
WAITING = 0.006 * 2**1.5


def overlapped(link: float, cores: float) -> float:
    """The seconds of what a link and the cores do side by side in part."""
    return float(np.hypot(link, cores))


@pytest.mark.parametrize(
    ("algorithm", "np_", "expected"),
    [
        ("ring", 2, (2, 1, 0.5)),
        ("ring", 4, (6, 1.5, 0.25)),
        ("ring", 5, (8, 1.6, 0.2)),
        ("halving and doubling", 2, (2, 1, 0.5)),
        ("halving and doubling", 8, (6, 1.75, 0.5)),
        ("halving and doubling", 5, (6, 3.5, 0.5)),
        ("recursive doubling", 2, (1, 1, 1)),
        ("recursive doubling", 8, (3, 3, 1)),
        ("recursive doubling", 5, (4, 4, 1)),
    ],
)
def test_what_a_rank_sends_one_after_the_other(algorithm: str, np_: int, expected: tuple[float, ...]) -> None:
    """The messages, and their bytes and those of the first one per byte of the result."""
    path = ALGORITHMS[algorithm](np_)
    assert (path.messages, path.bytes, path.first) == pytest.approx(expected)
    assert path.passes_on == (algorithm == "ring")


@pytest.mark.parametrize(
    ("algorithm", "np_", "expected"),
    [
        ("ring", 8, (0, 0, 14)),  # all of 1/8 of the bytes
        ("halving and doubling", 8, (2, 4, 6)),  # of 1/2, 1/4 and 1/8
        ("halving and doubling", 9, (4, 6, 8)),  # and two of all bytes
        ("recursive doubling", 8, (3, 3, 3)),
    ],
)
def test_messages_of_a_rank_have_different_sizes(algorithm: str, np_: int, expected: tuple[int, ...]) -> None:
    """How many are larger than 1000 bytes, in all-reduces of 3999, 7999 and 8001 bytes."""
    larger = ALGORITHMS[algorithm](np_).larger_than(1000, np.array([3999.0, 7999.0, 8001.0]))
    assert larger.tolist() == list(expected)


def test_ranks_with_cores_of_their_own_do_not_wait_for_each_other() -> None:
    """6 starts of 1 ms and 1.5 MB copied in 6 ms, beside 1.5 MB, or 0.5 MB, on the link."""
    for ranks_per_core in (0.25, 1):
        assert FORMULA.seconds(MB, 4, ranks_per_core) == pytest.approx(overlapped(0.015, 0.012))
        assert FORMULA.seconds(MB, 4, ranks_per_core, burst=1e6) == pytest.approx(overlapped(0.005, 0.012))
        assert FORMULA.seconds(MB, 4, ranks_per_core, burst=2e6) == pytest.approx(0.012)
    on_link = replace(FORMULA, start_seconds=0.0, copy_seconds_per_byte=0.0)
    assert on_link.seconds(MB, 4, 1, burst=1.5e6) == 0


def test_two_ranks_a_core_copy_for_twice_as_long_and_wait_longer() -> None:
    """12 ms of copies and 15 ms on the link."""
    assert FORMULA.seconds(MB, 4, 2) == pytest.approx(overlapped(0.015, WAITING + 0.012))


def test_copies_within_a_node_wait_for_a_part_of_the_turns() -> None:
    """Messages above 4 KiB take three starts in shared memory, and these wait as the exponent says.
    3 ms of copies wait for 0.70 of it, over sockets for all. The other rank on a core has copied
    its first message, a quarter of the bytes, before the last one begins.
    """
    shared_memory = replace(FORMULA, seconds_per_byte=0.0, within_a_node=True)
    copied = 0.003 * 2 ** (0.70 * 2)
    assert shared_memory.seconds(MB / 2, 4, 2) == pytest.approx(3 * 0.006 * 2**2 + copied - 0.5e-3)
    short: Floats = np.array([4 * 4096.0])
    assert shared_memory.seconds(short, 4, 1) == pytest.approx(0.006 + 6e-9 * short)
    assert shared_memory.seconds(short + 4, 4, 1) == pytest.approx(3 * 0.006 + 6e-9 * short, rel=1e-5)
    sockets = replace(shared_memory, over_sockets=True)
    assert sockets.seconds(MB / 2, 4, 2) == pytest.approx((0.006 + 0.003) * 2**2)


def test_ranks_that_exchange_halves_wait_for_whole_turns() -> None:
    """Four starts of 1 ms, four times as long where two ranks share a core."""
    halving = replace(FORMULA, algorithm="halving and doubling")
    assert halving.seconds(MB, 4, 2) == pytest.approx(overlapped(0.015, 0.016 + 0.012))
    assert halving.seconds(MB, 4, 1) == pytest.approx(overlapped(0.015, 0.004 + 0.006))


def test_copies_within_a_node_take_longer_outside_the_caches_of_a_core() -> None:
    """From 1 MiB that its ranks send and receive at once, up to three times as long at 16 MiB."""
    in_ring = replace(FORMULA, start_seconds=0.0, seconds_per_byte=0.0, crowding_exponent=1.0, within_a_node=True)
    copies = replace(in_ring, algorithm="halving and doubling")
    sizes = 2.0 ** np.array([17, 18, 20, 22, 24])  # eight ranks share a core
    each = (copies.seconds(sizes, 16, 8) + copies.begun_seconds(sizes, 16, 8)) / sizes
    assert (each / each[0]).tolist() == pytest.approx([1, 3**0.25, 3**0.75, 3, 3])
    alone = copies.seconds(sizes, 16, 1) / sizes
    assert (alone / alone[0]).tolist() == pytest.approx([1, 1, 1, 3**0.5, 3])
    # An eighth of the message at once.
    in_parts = (in_ring.seconds(8 * sizes, 16, 8) + in_ring.begun_seconds(8 * sizes, 16, 8)) / sizes
    assert (in_parts / in_parts[0]).tolist() == pytest.approx((each / each[0]).tolist())
    over_links = replace(copies, within_a_node=False).seconds(sizes, 16, 8) / sizes
    assert np.ptp(over_links) == pytest.approx(0, abs=1e-15)


def test_a_message_costs_the_formula_its_factor_and_what_horovod_does_before_and_after_it() -> None:
    """The factor of 1 MB is halfway from 1 to 3. Both ranks of a core handle it for 1 ms before,
    and each rank for 1 ms after it. The other rank begins for 1.5 ms, and each takes 0.75 ms to
    average.
    """
    others = 0.003 + 0.0015 + 2 * 0.00075
    assert COSTS.message_seconds(MB, 4) == pytest.approx(2 * overlapped(0.015, WAITING + 0.012) + others)
    assert COSTS.message_seconds(MB, 4) == COSTS.message_seconds(MB, 4, 0.0)
    assert COSTS.message_seconds(MB, 4, 1.5e6) == pytest.approx(2 * (WAITING + 0.012) + others)
    own_cores = replace(COSTS, cores=None)
    assert own_cores.message_seconds(MB, 4, 1e6) == pytest.approx(2 * overlapped(0.005, 0.012) + 0.00275)
    assert replace(COSTS, cores=8).message_seconds(MB, 4, 1e6) == own_cores.message_seconds(MB, 4, 1e6)


def test_agreements_and_copies_take_longer_where_ranks_share_cores() -> None:
    """Six ranks on two cores: three rounds, and crowding 3."""
    assert COSTS.agreement_seconds(6) == pytest.approx(3 * 9 * 1e-3)
    assert replace(COSTS, cores=None).agreement_seconds(6) == pytest.approx(3e-3)
    assert COSTS.copy_seconds(MB, 6) == pytest.approx((3 + 3) * 1e-3)
    assert replace(COSTS, cores=None).copy_seconds(MB, 6) == pytest.approx(2e-3)
    assert COSTS.agreement_seconds(2) == pytest.approx(1e-3)


def test_ranks_enqueue_in_turn_where_they_share_cores_of_a_node() -> None:
    within = replace(COSTS, formula=replace(COSTS.formula, within_a_node=True))
    assert within.enqueue_seconds(8) == pytest.approx(4 * 60e-6)
    assert within.enqueue_seconds(2) == 0  # each has a core
    assert replace(within, cores=None).enqueue_seconds(8) == 0
    assert replace(within, blocking=False).enqueue_seconds(8) == 0  # GPUs send
    assert COSTS.enqueue_seconds(8) == 0  # messages wait for the link


@pytest.mark.parametrize(
    ("algorithm", "first"), [("ring", 1 / 8), ("halving and doubling", 1 / 2), ("recursive doubling", 1)]
)
def test_the_ranks_of_a_core_copy_and_begin_a_message_one_after_the_other(algorithm: str, first: float) -> None:
    """Four ranks on each of two cores. Each sends 2 MiB at most before the next one copies. In
    shared memory it receives all of the first message.
    """
    costs = replace(COSTS, formula=replace(FORMULA, algorithm=algorithm))
    copies = 4 * (1e-3 + 1e-9 * MB)
    assert costs.before_seconds(MB, 8) == pytest.approx(copies + 3 * 6e-9 * MB * first)
    assert costs.before_seconds(100 * MB, 8) == pytest.approx(4 * (1e-3 + 0.1) + 3 * 6e-9 * 2**21)
    assert replace(costs, cores=None).before_seconds(MB, 8) == pytest.approx(2e-3)
    shared_memory = replace(costs, formula=replace(costs.formula, within_a_node=True))
    assert shared_memory.before_seconds(MB, 8) == pytest.approx(copies + 3 * 4e-9 * MB * first)
    begun = 3 * 4e-9 * 1e8 * first
    assert shared_memory.before_seconds(100 * MB, 8) == pytest.approx(4 * (1e-3 + 0.1) + begun)
    over_sockets = replace(costs, formula=replace(shared_memory.formula, over_sockets=True))
    assert over_sockets.before_seconds(100 * MB, 8) == pytest.approx(costs.before_seconds(100 * MB, 8))


def test_a_node_sends_the_bytes_of_the_algorithm() -> None:
    assert COSTS.sent_bytes(MB, 4) == pytest.approx(1.5e6)
    assert COSTS.sent_bytes(MB, 2) == pytest.approx(1e6)


def test_factors_are_interpolated_by_the_logarithm_of_the_bytes() -> None:
    sizes = np.array([0.0, 1.0, 10.0, 100.0, 1000.0])
    assert factor(((1.0, 0.5), (100.0, 1.5)), sizes) == pytest.approx([0.5, 0.5, 1, 1.5, 1.5])


def test_a_faster_link_sends_bytes_in_less_time() -> None:
    """Ten times as fast; the start and the copies stay. The burst is that of such a link."""
    faster = COSTS.with_link(1e9)
    assert faster.formula.seconds_per_byte == pytest.approx(1e-9)
    assert replace(faster.formula, seconds_per_byte=1e-8) == FORMULA
    assert faster.burst == Burst(burst_bytes(1e9), 1e9)
    assert replace(faster, formula=COSTS.formula, burst=COSTS.burst) == COSTS


def test_runs_without_a_limited_link_do_not_show_another_link() -> None:
    with pytest.raises(RequestError, match=r"^the runs were measured without a limited link"):
        replace(COSTS, burst=None).with_link(1e9)


@pytest.mark.parametrize("parameter", range(5))
def test_each_parameter_is_drawn_with_its_own_spread(parameter: int) -> None:
    """The first two and the last by their logarithms, the link's time as a share, the exponent as
    it is.
    """
    covariance = np.zeros((5, 5))
    covariance[parameter, parameter] = 0.01
    drawn = replace(COSTS, covariance=covariance).perturbed(4000).formula
    columns = [
        np.log(np.array(drawn.start_seconds) / 1e-3),
        np.log(np.array(drawn.copy_seconds_per_byte) / 4e-9),
        np.array(drawn.seconds_per_byte) / 1e-8 - 1,
        np.array(drawn.crowding_exponent) - 2,
        np.log(np.array(drawn.outside_caches) / 3),
    ]
    for number, column in enumerate(columns):
        assert column.shape == (4000,)
        assert column.mean() == pytest.approx(0, abs=0.01)
        assert column.std() == pytest.approx(0.1 if number == parameter else 0, abs=0.01)


def test_parameters_that_depend_on_each_other_are_drawn_together() -> None:
    """All correlations are 0.5."""
    covariance = 0.005 * (np.ones((5, 5)) + np.eye(5))
    drawn = replace(COSTS, covariance=covariance).perturbed(4000).formula
    positive = drawn.start_seconds, drawn.copy_seconds_per_byte, drawn.seconds_per_byte, drawn.outside_caches
    found = np.corrcoef([*map(np.log, positive), drawn.crowding_exponent])
    assert found == pytest.approx((np.ones((5, 5)) + np.eye(5)) / 2, abs=0.05)


def test_drawn_parameters_stay_possible() -> None:
    """A link is at most twice as fast as measured, and neither crowding nor leaving the caches ever
    makes messages faster.
    """
    covariance = np.diag([0.0, 0.0, 4.0, 4.0, 4.0])
    formula = replace(FORMULA, within_a_node=True, algorithm="halving and doubling")
    drawn = replace(COSTS, covariance=covariance, formula=formula).perturbed(1000)
    assert np.min(drawn.formula.seconds_per_byte) == pytest.approx(0.5e-8)
    assert np.min(drawn.formula.crowding_exponent) == 0
    assert np.min(drawn.formula.outside_caches) == 1
    assert drawn.formula.algorithm == "halving and doubling"
    assert drawn.formula.within_a_node
    outside = 3 ** (np.log2(2 * MB[0] / 2**20) / 4)  # two ranks copy 1 MB each
    begun = 4e-9 * MB[0] / 2
    of_cores = 3 * 0.016 + 0.006 * 2 ** (0.70 * 2) * outside - begun
    within = replace(drawn, formula=formula).message_seconds(MB, 4)
    assert within == pytest.approx(2 * overlapped(0.015, of_cores) + 0.003 + begun + 2 * 0.00075)


def test_the_same_seed_draws_the_same_parameters() -> None:
    costs = replace(COSTS, covariance=np.eye(5) / 100)
    first, again, other = (np.array(costs.perturbed(5, seed).formula.start_seconds) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).all()
