"""Fits to measurements whose result can be worked out by hand.

Where messages determine a parameter, a fit returns it; where they do not, it keeps the prior; and
where both count alike, it lies between them.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.prediction.model.costs import Burst
from hvscale.prediction.model.measured_costs import (
    CACHE_BYTES,
    Formula,
    Handling,
    MeasuredCosts,
    at_np,
    fit_costs,
    is_like_more_ranks,
    without_others,
)
from hvscale.prediction.model.samples import Samples, shows_copies

Floats = NDArray[np.float64]
RATE = 1.25e7  # bytes a second of a link
SIZES: Floats = np.exp2(np.arange(6.0, 25.0, 2.0))
# What the priors expect of copies, and so a law that no prior pulls at.
COPY_ON_LIMITED_LINKS, COPY = np.exp(-20.8), np.exp(-20.5)


def measured(np_: int, sizes: Floats, seconds: Floats, **changes: Any) -> Samples:
    """All-reduces on nodes of one rank: no agreements, no limited link, no copies by Horovod."""
    fields: dict[str, Any] = {
        "np": np_,
        "nodes": np_,
        "ranks_per_core": 1.0,
        "bytes": sizes,
        "seconds": seconds,
        "idle_seconds": np.zeros(len(sizes)),
        "agreements": np.empty(0),
        "bytes_per_second": None,
        "library": "Open MPI 5.0",
        "algorithm": None,
        "name": f"run-{np_}",
        "fused": np.zeros(len(sizes), np.bool_),
    }
    return Samples(**{**fields, **changes})


def by_law(law: Formula, np_: int, burst: float = 0.0, **changes: Any) -> Samples:
    """Calls of a benchmark, after which no rank does anything else."""
    per_core = changes.get("ranks_per_core", 1.0)
    return measured(np_, SIZES, law.seconds(SIZES, np_, per_core, burst), from_benchmark=True, **changes)


def waiting(np_: int = 4, seconds: float = 0.6, **changes: Any) -> Samples:
    """All-reduces of a byte, whose time depends on nothing but the start of their messages."""
    return measured(np_, np.ones(6), np.full(6, seconds), **changes)


# Laws


@pytest.mark.parametrize("algorithm", ["ring", "halving and doubling", "recursive doubling"])
def test_a_law_on_limited_links_is_found_again(algorithm: str) -> None:
    law = Formula(algorithm, 50e-6, COPY_ON_LIMITED_LINKS, 1.1 / RATE, 1.75)
    costs = fit_costs([by_law(law, np_, bytes_per_second=RATE) for np_ in (4, 8)], None, algorithm)
    assert costs.formula.start_seconds == pytest.approx(50e-6, rel=1e-3)
    assert costs.formula.copy_seconds_per_byte == pytest.approx(COPY_ON_LIMITED_LINKS, rel=1e-3)
    assert costs.formula.seconds_per_byte == pytest.approx(1.1 / RATE, rel=1e-3)
    assert costs.formula.crowding_exponent == pytest.approx(1.75, abs=1e-3)
    assert (costs.formula.algorithm, costs.formula.within_a_node) == (algorithm, False)
    assert [values for _, values in costs.factors] == pytest.approx([1] * len(SIZES), rel=1e-3)
    assert [sizes for sizes, _ in costs.factors] == pytest.approx(SIZES.tolist())


def test_a_law_on_other_links_counts_the_link_as_copying() -> None:
    law = Formula("ring", 50e-6, COPY, 0.0, 1.75)
    costs = fit_costs([by_law(law, 4), by_law(law, 8, ranks_per_core=2.0)], None, "ring")
    assert costs.formula.start_seconds == pytest.approx(50e-6, rel=1e-3)
    assert costs.formula.copy_seconds_per_byte == pytest.approx(COPY, rel=1e-3)
    assert (costs.formula.seconds_per_byte, costs.formula.within_a_node) == (0, False)
    assert costs.formula.crowding_exponent == pytest.approx(1.75, abs=1e-3)
    assert costs.burst is None


def test_within_a_node_copies_wait_as_messages_do() -> None:
    law = Formula("ring", 5e-6, COPY, 0.0, 1.4, within_a_node=True, outside_caches=1.5)
    runs = [by_law(law, 4, nodes=1, ranks_per_core=2.0), by_law(law, 8, nodes=1, ranks_per_core=4.0)]
    costs = fit_costs(runs, 2, "ring")
    assert costs.formula.start_seconds == pytest.approx(5e-6, rel=1e-3)
    assert costs.formula.copy_seconds_per_byte == pytest.approx(COPY, rel=1e-3)
    assert costs.formula.crowding_exponent == pytest.approx(1.4, abs=1e-3)
    assert costs.formula.within_a_node
    # One run between nodes, and copies no longer wait.
    assert not fit_costs([*runs, waiting(2)], 2, "ring").formula.within_a_node


def test_messages_show_how_much_longer_copies_take_outside_the_machines_caches() -> None:
    """Fifty runs outweigh the prior."""
    law = Formula("ring", 5e-6, COPY, 0.0, 1.0, within_a_node=True, outside_caches=3.0, cache_bytes=(1 << 16, 1 << 22))
    runs = [by_law(law, 4, nodes=1, ranks_per_core=2.0, cache_bytes=law.cache_bytes, round_robin=True)] * 50
    found = fit_costs(runs, 2, "ring").formula
    assert found.cache_bytes == law.cache_bytes
    assert found.outside_caches == pytest.approx(3, rel=0.1)
    large = np.array([1e9])
    assert found.seconds(large, 16, 8) == pytest.approx(law.seconds(large, 16, 8), rel=0.1)
    unknown = [replace(run, cache_bytes=None) for run in runs]
    assert fit_costs(unknown, 2, "ring").formula.cache_bytes == CACHE_BYTES


@pytest.mark.parametrize(("idle", "free"), [(0.0, 0), (0.01, 125_000), (1.0, 256 * 1024)])
def test_what_the_link_saved_up_while_idle_is_taken_into_account(idle: float, free: int) -> None:
    """A link of 12.5 MB/s saves 125 kB in 10 ms, and at most 256 KiB."""
    law = Formula("ring", 50e-6, COPY_ON_LIMITED_LINKS, 1.1 / RATE, 1.75)
    idles = np.full(len(SIZES), idle)
    costs = fit_costs([by_law(law, 4, free, bytes_per_second=RATE, idle_seconds=idles)], None, "ring")
    assert costs.formula.seconds_per_byte == pytest.approx(1.1 / RATE, rel=1e-3)
    assert [values for _, values in costs.factors] == pytest.approx([1] * len(SIZES), rel=1e-3)
    assert costs.burst == Burst(256 * 1024, RATE)


def test_runs_without_a_limit_show_what_copies_cost_while_ranks_wait_for_the_link() -> None:
    """At 80 ns a byte of the link, copies of 0.3 ns make no message longer than the prior's do."""
    law = Formula("ring", 50e-6, 0.3e-9, 1.1 / RATE, 1.75)
    limited = [by_law(law, np_, bytes_per_second=RATE) for np_ in (4, 8)]
    free = replace(law, seconds_per_byte=0.0)
    alone = fit_costs(limited, None, "ring")
    assert alone.formula.copy_seconds_per_byte == pytest.approx(COPY_ON_LIMITED_LINKS, rel=0.05)
    found = fit_costs(limited, None, "ring", [by_law(free, 4)])
    assert found.formula.copy_seconds_per_byte == pytest.approx(0.3e-9, rel=0.1)
    assert found.formula.seconds_per_byte == pytest.approx(1.1 / RATE, rel=1e-3)
    assert found.covariance[1, 1] < alone.covariance[1, 1]
    assert (alone.description, found.description) == (
        "measured on np 4, 8",
        "measured on np 4, 8, copies on np 4 without a limited link",
    )
    # Two ranks, or more on one core than on another, do not show what more ranks cost.
    unlike = [by_law(free, 2), by_law(free, 3, ranks_per_core=1.5), measured(4, np.empty(0), np.empty(0))]
    same = fit_costs(limited, None, "ring", unlike)
    assert (same.formula, same.description) == (alone.formula, alone.description)


@pytest.mark.parametrize(
    ("changes", "shows"),
    [
        ({}, True),
        ({"one_machine": False}, False),
        ({"nodes": 1}, False),
        ({"from_training": True}, False),
        ({"bytes_per_second": RATE}, False),
        ({"library": "Gloo"}, False),
    ],
)
def test_a_replay_between_nodes_without_a_limit_shows_copies_beside_limited_ones(
    changes: dict[str, Any], shows: bool
) -> None:
    one = waiting(**{"one_machine": True, **changes})
    limited = waiting(one_machine=True, bytes_per_second=RATE)
    assert shows_copies(one, [one, limited]) == shows
    assert not shows_copies(one, [one])


@pytest.mark.parametrize(("share", "fitted"), [(0.5, 1), (1.5, 1.5), (3, 2)])
def test_bytes_take_at_least_the_time_of_the_link_and_at_most_twice_as_long(share: float, fitted: float) -> None:
    law = Formula("ring", 50e-6, COPY_ON_LIMITED_LINKS, share / RATE, 1.75)
    costs = fit_costs([by_law(law, np_, bytes_per_second=RATE) for np_ in (4, 8)], None, "ring")
    assert costs.formula.seconds_per_byte == pytest.approx(fitted / RATE, rel=1e-3)


@pytest.mark.parametrize(("exponent", "fitted"), [(-1, 0), (0, 0.01), (4, 2.5)])
def test_crowding_never_makes_messages_faster_and_its_exponent_has_a_limit(exponent: float, fitted: float) -> None:
    """64 ranks a core in three runs show it much better than the prior."""
    law = Formula("halving and doubling", 1e-6, COPY, 0.0, exponent)
    times = [law.seconds(np.ones(1), 4, per_core)[0] for per_core in (1.0, 64.0)]
    runs = [waiting(4, times[0]), *[waiting(4, times[1], ranks_per_core=64.0)] * 3]
    assert fit_costs(runs, None).formula.crowding_exponent == pytest.approx(fitted, abs=0.01)


def test_a_slow_message_among_many_hardly_matters() -> None:
    """One of six that takes 100 times as long, where ranks have cores of their own."""
    law = Formula("ring", 0.1, COPY, 0.0, 1.75)
    slow = law.seconds(np.ones(6), 2, 1) * np.array([100, 1, 1, 1, 1, 1])
    runs = [measured(2, np.ones(6), slow), waiting(2, law.seconds(np.ones(1), 2, 2)[0], ranks_per_core=2.0)]
    assert fit_costs(runs, None, "ring").formula.crowding_exponent == pytest.approx(1.75, abs=0.05)


def test_a_slow_size_that_one_run_sends_more_often_is_not_taken_for_crowding() -> None:
    """Messages of 16 bytes take 1.8 times as long; a fit without regard to sizes finds 1.84."""
    law = Formula("halving and doubling", 0.01, COPY, 0.0, 1.75)
    runs = []
    for per_core, counts in ((1.0, (120, 40)), (2.0, (40, 120))):
        sizes = np.repeat([1.0, 16.0], counts)
        seconds = law.seconds(sizes, 2, per_core) * np.where(sizes == 16, 1.8, 1)
        runs.append(measured(2, sizes, seconds, ranks_per_core=per_core))
    costs = fit_costs(runs, None)
    assert costs.formula.crowding_exponent == pytest.approx(1.75, abs=2e-3)
    assert costs.factors[1][1] / costs.factors[0][1] == pytest.approx(1.8, rel=1e-3)


# Priors


@pytest.mark.parametrize(
    ("changes", "messages", "agreements"),
    [
        ({"bytes_per_second": RATE}, 1.75, 1.5),
        ({}, 1.75, 1.5),
        ({"nodes": 1}, 1.4, 1.4),
        ({"round_robin": True}, 1, 1.4),
        ({"round_robin": True, "nodes": 1}, 1, 1.4),
    ],
)
def test_runs_without_crowding_leave_its_exponents_to_the_prior(
    changes: dict[str, Any], messages: float, agreements: float
) -> None:
    costs = fit_costs([waiting(**changes, agreements=np.full(3, 1e-3))], None)
    assert costs.formula.crowding_exponent == pytest.approx(messages, abs=1e-3)
    assert costs.agreement_exponent == pytest.approx(agreements)
    assert costs.agreement_start_seconds == pytest.approx(0.5e-3)


def test_a_prior_counts_as_much_as_one_run() -> None:
    """The times of two runs ask for an exponent of 1, and the prior for 1.75.

    With e ** 0.8 ranks per core in one run, an exponent of 1 + x misses each of the two times by
    0.4 x, which is 2 x in units of the expected error of 0.2. Measured in those of the prior, 0.25,
    1.75 - y misses by 4 y. Both pull alike where x = 2 y: at 1.5. Twelve messages count as six do.
    """
    runs = [waiting(2), waiting(2, 0.6 * np.exp(0.8), ranks_per_core=np.exp(0.8))]
    assert fit_costs(runs, None).formula.crowding_exponent == pytest.approx(1.5, abs=2e-3)
    longer = measured(2, np.ones(12), np.full(12, 0.6))
    assert fit_costs([longer, runs[1]], None).formula.crowding_exponent == pytest.approx(1.5, abs=0.05)


def test_large_messages_show_what_copies_cost() -> None:
    """The prior of copies is weak where no link is known."""
    law = Formula("ring", 50e-6, np.exp(-19.5), 0.0, 1.75)
    costs = fit_costs([by_law(law, 4)], None, "ring")
    assert np.log(costs.formula.copy_seconds_per_byte) == pytest.approx(-19.5, abs=0.1)


def test_one_size_of_messages_leaves_the_link_and_the_copies_to_the_prior() -> None:
    costs = fit_costs([waiting(bytes_per_second=RATE)], None, "ring")
    assert costs.formula.start_seconds == pytest.approx(0.1, rel=1e-3)
    assert costs.formula.copy_seconds_per_byte == pytest.approx(COPY_ON_LIMITED_LINKS, rel=1e-3)
    assert costs.formula.seconds_per_byte == pytest.approx(1514 / 1448 / RATE, rel=1e-3)
    other = fit_costs([waiting()], None, "ring")
    assert other.formula.copy_seconds_per_byte == pytest.approx(COPY, rel=1e-3)


def test_what_messages_do_not_determine_keeps_the_spread_of_the_prior() -> None:
    """Deviations of 0.3, 0.1, 0.25 and 0.5 for copies, link, exponent and caches; none is left for
    the start.
    """
    spread = np.sqrt(np.diag(fit_costs([waiting(bytes_per_second=RATE)], None).covariance))
    assert spread == pytest.approx([0, 0.3, 0.1, 0.25, 0.5], abs=1e-3)
    round_robin = fit_costs([waiting(round_robin=True)], None)
    assert np.sqrt(round_robin.covariance[3, 3]) == pytest.approx(0.06, abs=1e-3)


def test_a_run_determines_as_much_as_twenty_independent_messages() -> None:
    """Two runs with errors of 2 %: the start is known to 2 % / sqrt(40)."""
    seconds = 0.6 * np.exp([0.02, -0.02] * 3)
    costs = fit_costs([measured(4, np.ones(6), seconds)] * 2, None)
    assert np.sqrt(costs.covariance[0, 0]) == pytest.approx(0.02 / np.sqrt(40), rel=0.02)


# Which algorithm, and which runs


@pytest.mark.parametrize(
    ("asked", "algorithm"),
    [
        ("ring", "ring"),
        ("segmented_ring", "ring"),
        ("4", "ring"),
        ("rabenseifner", "halving and doubling"),
        ("reduce_scatter_allgather", "halving and doubling"),
        ("3", "recursive doubling"),
        ("recursive_doubling", "recursive doubling"),
        # The usual one is assumed for others, because one np does not show it.
        ("linear", "halving and doubling"),
        (None, "halving and doubling"),
    ],
)
def test_the_algorithm_is_that_which_the_runs_asked_for(asked: str | None, algorithm: str) -> None:
    assert fit_costs([waiting(algorithm=asked)], None).formula.algorithm == algorithm
    assert fit_costs([waiting(algorithm=asked)], None, "recursive doubling").formula.algorithm == "recursive doubling"


def test_of_algorithms_that_fit_alike_the_usual_one_is_taken() -> None:
    """On 4 and 8 ranks, ring sends as many bytes one after the other as halving and doubling."""
    sizes: Floats = np.repeat(np.exp2(np.arange(20.0, 27.0)), 2)
    law = Formula("ring", 1e-8, COPY, 0.0, 1.75)
    scatter = np.exp([0.1, -0.1] * 7)
    runs = [measured(np_, sizes, law.seconds(sizes, np_, 1) * scatter) for np_ in (4, 8)]
    assert fit_costs(runs, None).formula.algorithm == "halving and doubling"
    # Messages of a byte take as many starts as the algorithm has.
    runs = [waiting(np_, 0.1 * 2 * (np_ - 1)) for np_ in (4, 8)]
    assert fit_costs(runs, None).formula.algorithm == "ring"


@pytest.mark.parametrize("nps", [(3, 6), (5, 8)])
def test_large_messages_show_the_algorithm_where_small_ones_use_another(nps: tuple[int, int]) -> None:
    """Libraries use recursive doubling for small messages only."""
    small: Floats = np.exp2(np.arange(6.0, 12.0))
    large: Floats = np.exp2(np.arange(20.0, 25.0))
    doubling, ring = (Formula(name, 50e-6, COPY, 0.0, 1.75) for name in ("recursive doubling", "ring"))
    runs = []
    for np_ in nps:
        seconds = np.concatenate([doubling.seconds(small, np_, 1), ring.seconds(large, np_, 1)])
        runs.append(measured(np_, np.concatenate([small, large]), seconds))
    assert fit_costs(runs, None).formula.algorithm == "ring"
    assert fit_costs(runs[::-1], None).formula.algorithm == "ring"


def test_one_number_of_ranks_does_not_show_the_algorithm() -> None:
    law = Formula("ring", 50e-6, COPY_ON_LIMITED_LINKS, 1.1 / RATE, 1.75)
    costs = fit_costs([by_law(law, 5, bytes_per_second=RATE)], None)
    assert costs.formula.algorithm == "halving and doubling"


@pytest.mark.parametrize(
    ("np_", "ranks_per_core", "is_like"),
    [(2, 0.5, False), (2, 1.0, False), (3, 0.5, True), (3, 1.0, True), (3, 1.5, False), (4, 2.0, True)],
)
def test_two_ranks_and_uneven_cores_do_not_show_how_more_ranks_wait(
    np_: int, ranks_per_core: float, is_like: bool
) -> None:
    assert is_like_more_ranks(waiting(np_, ranks_per_core=ranks_per_core)) == is_like


def test_only_runs_that_are_like_more_ranks_are_fitted() -> None:
    runs = [waiting(2), waiting(4), waiting(8), waiting(3, ranks_per_core=1.5)]
    costs = fit_costs(runs, cores=2)
    assert (costs.description, costs.largest_np, costs.cores) == ("measured on np 4, 8", 8, 2)
    # Without one, all are.
    costs = fit_costs([runs[3], runs[0]], cores=None)
    assert (costs.description, costs.largest_np, costs.cores) == ("measured on np 2, 3", 3, None)


def test_messages_of_two_ranks_count_for_two_ranks_alone() -> None:
    law = Formula("ring", 50e-6, COPY_ON_LIMITED_LINKS, 1.1 / RATE, 1.75)
    two = measured(2, SIZES, 1.5 * law.seconds(SIZES, 2, 1.0), bytes_per_second=RATE)
    runs = [two, *(by_law(law, np_, bytes_per_second=RATE) for np_ in (4, 8))]
    costs = fit_costs(runs, cores=None)
    assert at_np(costs, runs, 2).message_seconds(SIZES, 2) == pytest.approx(two.seconds, rel=1e-3)
    for np_ in (3, 4, 8, 16):
        assert at_np(costs, runs, np_) is costs
    # Two ranks on one core are in another place. On another link, messages keep their factors.
    crowded = fit_costs(runs, cores=1)
    assert at_np(crowded, runs, 2) is crowded
    faster = costs.with_link(2 * RATE)
    there = at_np(faster, runs, 2)
    assert there.factors[0][1] == pytest.approx(at_np(costs, runs, 2).factors[0][1])
    assert there.factors[-1][1] == pytest.approx(1.5, rel=1e-3)
    assert there.formula == faster.formula


def test_a_run_without_messages_counts_for_agreements_only() -> None:
    other = measured(2, np.empty(0), np.empty(0), agreements=np.full(2, 3e-3), library="another", nodes=1)
    costs = fit_costs([other, waiting()], None)
    assert costs.description == "measured on np 4"
    assert costs.agreement_start_seconds == pytest.approx(3e-3)
    with pytest.raises(RequestError, match=r"^no run contains measured all-reduces: .* -np 4 .*and add that run$"):
        fit_costs([other], None)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"library": "MPICH 4.3"}, "libraries .*Open MPI 5.0, MPICH 4.3|libraries .*MPICH 4.3, Open MPI 5.0"),
        ({"bytes_per_second": 1e6}, r"links .*None, 1000000.0|links .*1000000.0, None"),
        ({"algorithm": "ring"}, "algorithms .*None, ring|algorithms .*ring, None"),
    ],
)
def test_the_difference_of_runs_that_cannot_be_compared_is_named(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(RequestError, match=f"^the runs were measured with different ({what})"):
        fit_costs([waiting(), waiting(8, **changes)], None)


# What the formula leaves


def test_at_measured_sizes_the_mean_measured_time_is_returned() -> None:
    sizes = np.repeat(2.0 ** np.array([10, 14, 18, 22]), 40)
    seconds = np.repeat(np.array([1, 3, 3, 3, 2, 6, 20, 24]), 20) * 1e-3
    costs = fit_costs([measured(4, sizes, seconds)], None)
    assert costs.wire_seconds(sizes[::40], 4) == pytest.approx([2e-3, 3e-3, 4e-3, 22e-3])
    # On two runs, all messages of a size count alike, whatever their run.
    other = measured(4, sizes[:20], np.full(20, 2.9e-3))
    costs = fit_costs([measured(4, sizes, seconds), other], None)
    assert costs.wire_seconds(sizes[:1], 4) == pytest.approx([2.3e-3])


def test_messages_of_the_nearest_sizes_count_until_there_are_enough() -> None:
    """One message took 40 times as long. It counts for sizes with fewer than 40 messages, from a
    quarter to four times its own.
    """
    law = Formula("ring", 1e-3, COPY, 0.0, 0.0)

    def factors(*counts: int) -> list[float]:
        sizes = np.repeat(2.0 ** np.array([10, 12, 15]), counts)
        seconds = law.seconds(sizes, 4, 1.0)
        seconds[counts[0]] *= 40
        return [value for _, value in fit_costs([measured(4, sizes, seconds)], None, "ring").factors]

    assert factors(39, 1, 40) == pytest.approx([79 / 40, 79 / 40, 1], rel=0.05)
    assert factors(40, 40, 1) == pytest.approx([1, 79 / 40, 1], rel=0.05)
    assert factors(9, 31, 9) == pytest.approx([79 / 40, 79 / 40, 1], rel=0.05)
    assert factors(9, 1, 9) == pytest.approx([2, 2, 1], rel=0.05)


def test_sizes_within_a_quarter_of_a_doubling_share_a_factor() -> None:
    sizes: Floats = 1024 * np.exp2(np.array([-0.24, 0, 0.24, 0.26, 0.76]))
    costs = fit_costs([measured(4, sizes, np.full(5, 1e-3))], None)
    assert [size for size, _ in costs.factors] == pytest.approx([1024, 1024 * 2**0.5, 2048])
    empty = fit_costs([measured(4, np.zeros(3), np.full(3, 1e-3))], None)
    assert [size for size, _ in empty.factors] == [1]


def test_a_factor_is_at_least_a_half_and_at_most_two() -> None:
    seconds = np.tile(1e-3, len(SIZES))
    seconds[3], seconds[6] = 1e-5, 1e-1
    run = measured(4, np.repeat(SIZES, 40), np.repeat(seconds, 40))
    factors = [value for _, value in fit_costs([run], None).factors]
    assert (factors[3], factors[6]) == (0.5, 2)


def test_ranks_of_a_core_wait_less_for_copies_in_shared_memory() -> None:
    """Copies of 8 ranks on a core take 4^0.70 times as long as those of 2, over sockets 4 times,
    with those that the others have begun before the last rank.
    """

    def growth(**where: Any) -> float:
        fields = {"ranks_per_core": 2.0, "round_robin": True, **where}
        costs = fit_costs([measured(4, SIZES, 1e-9 * SIZES, **fields)], 2, "ring")
        large: Floats = np.array([2.0**30])
        begun = [costs.formula.begun_seconds(large, np_, np_ / 2) for np_ in (16, 4)]
        copies = (costs.wire_seconds(large, 16) + begun[0]) / (costs.wire_seconds(large, 4) + begun[1])
        sent = (2 * 15 / 16) / (2 * 3 / 4)
        return float(copies[0] / sent)

    assert growth(nodes=1, over_sockets=True) == pytest.approx(4, rel=0.05)
    assert growth(nodes=1) == pytest.approx(4**0.70, rel=0.05)
    assert growth(nodes=4, over_sockets=True) == pytest.approx(4, rel=0.05)


# Agreements


def agreements(*runs: tuple[int, float, float]) -> MeasuredCosts:
    """Fitted to runs of agreements, each as np, ranks per core and the mean seconds."""
    return fit_costs(
        [
            waiting(np_, ranks_per_core=shared, agreements=seconds * np.array([0.5, 1.25, 1.25]))
            for np_, shared, seconds in runs
        ],
        None,
    )


def test_a_round_of_agreements_takes_the_geometric_mean_of_runs() -> None:
    """One round of 1 ms, and three of 4 ms."""
    costs = agreements((4, 0.5, 2e-3), (8, 1, 12e-3))
    assert costs.agreement_seconds(2) == pytest.approx(2e-3)
    assert costs.agreement_exponent == pytest.approx(1.5)
    none = fit_costs([waiting()], None)
    assert (none.agreement_start_seconds, none.agreement_exponent) == (0, 0)


def test_an_agreement_that_passes_from_rank_to_rank_takes_as_long_on_shared_cores() -> None:
    """Six messages of 1 ms on four ranks, and thirty on sixteen."""
    run = waiting(ranks_per_core=2.0, round_robin=True, agreements=np.full(3, 6e-3), agrees_in_ring=True)
    costs = fit_costs([run], 2)
    assert costs.agreement_seconds(4) == pytest.approx(6e-3)
    assert costs.agreement_seconds(16) == pytest.approx(30e-3)


@pytest.mark.parametrize(("true", "fitted"), [(0.5, 1.0147), (1.5, 1.5), (-0.5, 0.5294), (-9, 0), (9, 2.5)])
def test_the_exponent_of_agreements_is_between_that_of_the_runs_and_the_prior(true: float, fitted: float) -> None:
    """With three ranks per core in one run, they count as ln(3) ** 2 / 2 = 0.60.

    The prior of 1.5 counts as (0.2 / 0.25) ** 2 = 0.64. The exponent has limits.
    """
    costs = agreements((4, 1.0, 2e-3), (4, 3.0, 2e-3 * 3**true))
    assert costs.agreement_exponent == pytest.approx(fitted, abs=1e-4)
    assert costs.agreement_start_seconds == pytest.approx(1e-3 * 3 ** ((true - costs.agreement_exponent) / 2))


def test_two_ranks_do_not_show_how_long_more_take_to_agree() -> None:
    alone = agreements((4, 2.0, 2e-3))
    assert agreements((2, 1.0, 1.0), (4, 2.0, 2e-3)).agreement_seconds(8) == alone.agreement_seconds(8)
    assert agreements((2, 1.0, 1.0)).agreement_seconds(2) == pytest.approx(1.0)


def test_a_long_agreement_counts_as_much_as_the_longest_tenth() -> None:
    seconds = np.concatenate([np.full(18, 1e-3), [2e-3, 1.0]])
    costs = fit_costs([waiting(agreements=seconds)], None)
    assert costs.agreement_seconds(4) == pytest.approx((18 * 1e-3 + 2 * 1.1e-3) / 20, rel=0.02)


# What precedes a message


def handling(before: Floats | None, sizes: Floats, **changes: Any) -> Handling:
    seconds = np.full(len(sizes), 1e-3)
    fields = {"before_seconds": before, "fused": None, **changes}
    return fit_costs([measured(4, sizes, seconds, **fields)], None).handling


def test_handling_is_the_line_of_the_times_before_messages() -> None:
    sizes = np.array([1e5, 1e5, 1e6, 3e6])
    line = 40e-6 + 2e-10 * sizes
    assert handling(line, sizes) == pytest.approx((40e-6, 2e-10))
    assert handling(line, sizes, ranks_per_core=0.5) == pytest.approx((40e-6, 2e-10))
    # One message in four that takes longer changes nothing.
    assert handling(line + np.array([0, 0, 1, 0]), sizes) == pytest.approx((40e-6, 2e-10))


def test_a_rank_s_own_copies_are_the_line_where_times_before_messages_are_unknown() -> None:
    sizes = np.array([1e5, 1e6, 3e6])
    copies = 2 * sizes, 40e-6 + 2e-10 * 2 * sizes
    for crowding in (1.0, 2.0):
        assert handling(None, sizes, copies=copies, ranks_per_core=crowding) == pytest.approx((40e-6, 2e-10))
    assert handling(30e-6 + 3e-10 * sizes, sizes, copies=copies) == pytest.approx((30e-6, 3e-10))
    assert handling(None, sizes, copies=(sizes / 100, 1e-3 * sizes)) == pytest.approx((0, 1.25e-10))


def test_the_ranks_of_a_core_handle_a_message_one_after_the_other() -> None:
    """Without their first sends, two ranks take twice as long as one, and four four times."""
    sizes, line = np.array([1e5, 1e6, 3e6]), 40e-6 + 2e-10 * np.array([1e5, 1e6, 3e6])
    runs = [measured(4, sizes, np.full(3, 1e-3), ranks_per_core=crowding, fused=None) for crowding in (1.0, 2.0, 4.0)]
    formula = fit_costs(runs, 1).formula
    first = [formula.begun_seconds(sizes, 4, run.ranks_per_core) for run in runs]
    assert first[2].all()
    runs = [
        replace(run, before_seconds=run.ranks_per_core * line + sends) for run, sends in zip(runs, first, strict=True)
    ]
    assert fit_costs(runs, 1).handling == pytest.approx((40e-6, 2e-10))
    # The lines of runs count alike, but a slow start among three does not.
    flat, slow = (replace(runs[0], before_seconds=before) for before in (np.full(3, 1e-5), 3 * line))
    assert fit_costs([runs[0], flat], 1).handling == pytest.approx((25e-6, 1e-10))
    assert fit_costs([runs[0], runs[0], slow], 1).handling == pytest.approx((40e-6, 2e-10))


def test_only_fused_messages_show_copies() -> None:
    sizes = np.array([1e5, 1e6, 3e6, 5e6])
    fused = np.array([True, True, True, False])
    before = np.where(fused, 40e-6 + 2e-10 * sizes, 0)
    assert handling(before, sizes, fused=fused) == pytest.approx((40e-6, 2e-10))
    assert handling(before, sizes, fused=~fused) == pytest.approx((0, 1.25e-10))


@pytest.mark.parametrize(("fused", "copies"), [(True, 1), (False, 0)])
def test_what_the_others_of_a_core_do_after_a_message_is_not_part_of_it(fused: bool, copies: int) -> None:
    """They average, for 0.75 of the time of a copy, and copy what was fused out of the buffer."""
    sizes = np.repeat(SIZES, 40)
    alone = 1e-3 + 1e-9 * sizes
    handling = Handling(0.0, 2e-10)

    def left(crowding: float, seconds: Floats, **fields: Any) -> Floats:
        run = measured(4, sizes, seconds, ranks_per_core=crowding, fused=np.full(len(sizes), fused), **fields)
        return without_others(run, handling).seconds

    of_another = (0.75 + copies) * 2e-10 * sizes
    assert left(4.0, alone + 3 * of_another) == pytest.approx(alone)
    assert left(1.0, alone) == pytest.approx(alone)
    assert left(0.5, alone) == pytest.approx(alone)
    # While they moved, ranks took a fifth of the cores' time to enqueue.
    assert left(4.0, (alone + 3 * of_another) / 0.8, enqueueing=0.2) == pytest.approx(alone)
    # A benchmark's ranks do nothing afterwards, and what remains is never less than 30 %.
    assert left(4.0, alone, from_benchmark=True) == pytest.approx(alone)
    assert left(4.0, of_another) == pytest.approx(0.3 * of_another)


def test_a_fit_leaves_out_what_the_others_of_a_core_do_after_a_message() -> None:
    sizes = np.repeat(SIZES, 40)
    alone = 1e-3 + 1e-9 * sizes
    run = measured(4, sizes, alone + 1.75 * 2e-10 * sizes, ranks_per_core=2.0, fused=None)
    formula = fit_costs([run], 2).formula
    before = 2 * (40e-6 + 2e-10 * sizes) + formula.begun_seconds(sizes, 4, 2.0)
    costs = fit_costs([replace(run, before_seconds=before)], 2)
    assert costs.handling.seconds_per_byte == pytest.approx(2e-10, rel=0.1)
    assert costs.wire_seconds(SIZES, 4) == pytest.approx(1e-3 + 1e-9 * SIZES, rel=0.05)


def test_larger_messages_never_take_less_time_to_copy() -> None:
    sizes = np.array([1e5, 1e6, 3e6])
    assert handling(np.array([3e-3, 2e-3, 1e-3]), sizes) == pytest.approx((2e-3, 0))
    assert handling(-1e-3 + 2e-9 * sizes, sizes) == pytest.approx((0, 2e-9))


def test_small_messages_do_not_show_what_a_byte_takes_to_copy() -> None:
    """One core copies 8 GB/s then."""
    sizes = np.array([1e4, 1e5, 2e5])
    assert handling(40e-6 + 2e-10 * sizes, sizes) == pytest.approx((0, 1.25e-10))
    assert handling(40e-6 + 2e-10 * sizes, sizes * 2) == pytest.approx((40e-6, 1e-10))


def test_two_sizes_do_not_show_a_line() -> None:
    """One core copies 8 GB/s then."""
    sizes = np.array([1e5, 1e6, 1e6])
    assert handling(40e-6 + 2e-10 * sizes, sizes) == pytest.approx((0, 1.25e-10))
    assert handling(None, np.array([1e5, 1e6, 3e6])) == pytest.approx((0, 1.25e-10))


def test_a_sample_of_many_times_gives_the_same_line_again() -> None:
    generator = np.random.default_rng(0)
    sizes = generator.uniform(1e3, 1e6, 600)
    before = 2e-10 * sizes + generator.exponential(1e-4, 600)
    assert handling(before, sizes) == handling(before, sizes)


# Slow messages


def test_slow_messages_are_part_of_the_mean_of_their_size() -> None:
    """One of six takes five times as long. Fitting again must not lower what is predicted."""
    seconds = 0.6 * np.array([5.0, 1, 1, 1, 1, 1])  # 1 s on average
    costs = fit_costs([measured(4, np.ones(6), seconds)], None)
    assert costs.message_seconds(np.ones(1), 4) == pytest.approx(1.0, rel=0.05)


def test_slow_messages_do_not_lower_what_all_messages_cost() -> None:
    """One of ten at each size takes four times as long: the start is that of the others."""
    law = Formula("ring", 50e-6, COPY_ON_LIMITED_LINKS, 1.1 / RATE, 1.75)
    sizes = np.repeat(SIZES, 10)
    slow = np.where(np.arange(len(sizes)) % 10 == 0, 4.0, 1.0)
    runs = [measured(np_, sizes, slow * law.seconds(sizes, np_, 1.0), bytes_per_second=RATE) for np_ in (4, 8)]
    costs = fit_costs(runs, None, "ring")
    assert costs.formula.start_seconds == pytest.approx(50e-6, rel=0.1)
    assert [value for _, value in costs.factors] == pytest.approx([1.3] * len(SIZES), rel=0.1)
