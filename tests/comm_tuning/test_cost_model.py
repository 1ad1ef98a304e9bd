"""The cost model: the fit recovers known parameters, and the best chunk is optimal."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.comm_tuning.collectives.decide.cost_model import (
    COSTS,
    CriticalPath,
    Fit,
    critical_path,
    fit,
    level_of,
    tree_depth,
    wire_seconds,
)
from hvscale.comm_tuning.collectives.decide.measurements import AlgorithmChoice, Point

KIB, MIB = 1 << 10, 1 << 20
NAMED = {
    (operation, name): AlgorithmChoice(library_algorithm=name.removeprefix("library's "))
    if name.startswith("library's ")
    else AlgorithmChoice.model_validate({"algorithm": name})
    for operation, name in COSTS
}


def made(fit: Fit, operation: str, np: int, size: int, choice: AlgorithmChoice) -> Point:
    """A point whose time is exactly that of the model."""
    seconds = fit.seconds(operation, np, size, choice)
    fields = {"operation": operation, "np": np, "ranks_per_node": 1, "bytes": size, "choice": choice}
    return Point.model_validate({**fields, "seconds": [seconds]})


def timed(size: int, *seconds: float, name: str = "recursive_doubling", **more: Any) -> Point:
    """By default an all-reduce of two ranks that sends one message of `size` bytes."""
    place = {"operation": "allreduce", "np": 2, "ranks_per_node": 1, "bytes": size}
    choice = AlgorithmChoice(library_algorithm=name)
    return Point.model_validate({**place, "choice": choice, "seconds": list(seconds), **more})


def model(start: float, bandwidth: float | None, rendezvous: float = 0, limit: int | None = None) -> Fit:
    return Fit(
        level="between nodes",
        start_seconds=start,
        bytes_per_second=bandwidth,
        rendezvous_seconds=rendezvous,
        eager_limit_bytes=limit,
        points=0,
        error_percent=0,
    )


@given(
    start=st.floats(1e-7, 1e-3),
    bandwidth=st.floats(1e7, 1e11),
    rendezvous=st.floats(1e-6, 1e-3),
    algorithms=st.sets(st.sampled_from(sorted(NAMED)), min_size=1, max_size=5),
)
def test_the_fit_recovers_known_parameters(
    start: float, bandwidth: float, rendezvous: float, algorithms: set[tuple[str, str]]
) -> None:
    real = model(start, bandwidth, rendezvous, 64 * KIB)
    points = [
        made(real, operation, np, 4**power, NAMED[operation, name])
        for operation, name in sorted(algorithms)
        for np in (2, 4, 8)
        for power in range(4, 15)
    ]
    [found] = fit(points, default_eager_limit=64 * KIB).values()
    assert found.level == "between nodes"
    assert found.points == len(points)
    assert found.error_percent < 0.01
    for point in points:
        expected = real.seconds(point.operation, point.np, point.bytes, point.choice)
        assert found.seconds(point.operation, point.np, point.bytes, point.choice) == pytest.approx(expected, rel=1e-3)


def test_each_level_and_eager_limit_is_fitted_separately() -> None:
    chain = AlgorithmChoice(algorithm="chain", chunk_bytes=32 * KIB)
    network, memory, raised = model(1e-4, 1e8), model(1e-6, 1e10), model(5e-5, 1e8)
    points = []
    for size in (KIB, MIB, 64 * MIB):
        points += [
            made(network, "broadcast", 4, size, chain),
            made(memory, "broadcast", 4, size, chain).model_copy(update={"ranks_per_node": 4}),
            made(raised, "broadcast", 4, size, chain).model_copy(update={"eager_limit_bytes": MIB}),
        ]
    wrong = made(network, "broadcast", 4, KIB, chain).model_copy(update={"seconds": [9.0], "wrong": 1})
    found = fit([*points, wrong])
    assert {key: round(one.start_seconds, 9) for key, one in found.items()} == {
        ("between nodes", None): 1e-4,
        ("within a node", None): 1e-6,
        ("between nodes", MIB): 5e-5,
    }
    assert fit([point for point in points if point.choice == AlgorithmChoice()]) == {}


@given(
    np=st.integers(2, 64),
    size=st.integers(1, 1 << 30),
    start=st.floats(1e-7, 1e-3),
    bandwidth=st.floats(1e7, 1e11),
    rendezvous=st.sampled_from([0.0, 1e-5, 1e-3]),
    limit=st.none() | st.sampled_from([4 * KIB, 64 * KIB, MIB]),
)
def test_no_chunk_is_better_than_the_best_chunk(
    np: int, size: int, start: float, bandwidth: float, rendezvous: float, limit: int | None
) -> None:
    known = model(start, bandwidth, rendezvous, limit)

    def seconds(chunk: int) -> float:
        found = known.seconds("broadcast", np, size, AlgorithmChoice(algorithm="chain", chunk_bytes=chunk))
        assert found is not None
        return found

    best = known.best_chunk(np, size)
    assert 1 <= best <= size
    tried = {min(2**power, size) for power in range(31)} | {min(limit or size, size)}
    # The formula ignores that a chunk is a whole number of bytes.
    assert seconds(best) <= min(map(seconds, tried)) * (1 + 2 / best)


def test_formulas_of_the_studies() -> None:
    """A chain, a binomial tree and the best chunk, with the link of the test cluster."""
    start, bandwidth, total = 1e-4, 1.25e8, 64 * MIB
    known = model(start, bandwidth)
    chain = AlgorithmChoice(algorithm="chain", chunk_bytes=32 * KIB)
    assert known.seconds("broadcast", 4, total, chain) == pytest.approx((2 + 2048) * (start + 32 * KIB / bandwidth))
    assert known.seconds("broadcast", 5, total, AlgorithmChoice(algorithm="k-nomial", radix=2)) == pytest.approx(
        3 * (start + total / bandwidth)
    )
    assert known.best_chunk(4, total) == int(math.sqrt(total * start * bandwidth / 2))


@pytest.mark.parametrize(
    ("operation", "name", "sizes", "messages", "total"),
    [
        ("broadcast", "chain", {"chunk_bytes": 20}, 3 + 5, 160),
        ("broadcast", "chain", {}, 3 + 1, 400),
        ("broadcast", "chain", {"chunk_bytes": 1000}, 3 + 1, 400),
        ("broadcast", "flat", {"chunk_bytes": 20}, 4 * 5, 400),
        ("broadcast", "k-nomial", {"chunk_bytes": 20}, 3 * 5, 300),  # three levels of one message
        ("broadcast", "k-nomial", {"chunk_bytes": 20, "radix": 3}, 2 * 2 * 5, 400),
        ("broadcast", "library's pipeline", {"segment_bytes": 20}, 3 + 5, 160),
        ("broadcast", "library's linear", {}, 4, 400),
        ("broadcast", "library's binomial", {"segment_bytes": 20}, 3 * 5, 300),
        ("broadcast", "library's scatter_allgather", {}, 2 * 3, 160),
        ("broadcast", "library's scatter_ring_allgather", {}, 3 + 4, 160),
        ("allreduce", "library's ring", {}, 2 * 4, 160),
        ("allreduce", "library's segmented_ring", {"segment_bytes": 10}, 2 * 4 * 2, 160),
        ("allreduce", "library's segmented_ring", {"segment_bytes": 1000}, 2 * 4, 160),
        ("allreduce", "library's recursive_doubling", {}, 3, 300),
        ("allreduce", "library's reduce_scatter_allgather", {}, 2 * 3, 160),
        ("allgather", "library's ring", {}, 4, 80),
        ("allgather", "library's recursive_doubling", {}, 3, 80),
        ("allgather", "library's bruck", {}, 3, 80),
        ("gather", "library's linear", {}, 4, 80),
        ("gather", "library's binomial", {}, 3, 80),
    ],
)
def test_the_critical_path_for_100_bytes_on_five_ranks(
    operation: str, name: str, sizes: dict[str, int], messages: float, total: float
) -> None:
    choice = NAMED[operation, name].model_copy(update=sizes)
    assert critical_path(operation, 5, 100, choice) == CriticalPath(messages, total)


def test_a_full_tree_has_no_further_level() -> None:
    assert [tree_depth(n) for n in (2, 4, 5, 8, 9)] == [1, 2, 3, 3, 4]
    assert math.log(125, 5) > 3  # by rounding
    assert tree_depth(125, 5) == 3


def test_a_rendezvous_is_paid_above_the_eager_limit() -> None:
    """100 bytes on five ranks: 8 messages of 20 bytes, or 7 of 25."""

    def seconds(known: Fit, chunk: int) -> float | None:
        return known.seconds("broadcast", 5, 100, AlgorithmChoice(algorithm="chain", chunk_bytes=chunk))

    limited = model(2, 10, rendezvous=1, limit=20)
    assert seconds(limited, 20) == 8 * 2 + 160 / 10
    assert seconds(limited, 25) == 7 * (2 + 1) + 175 / 10
    assert seconds(model(2, 10, rendezvous=1), 25) == 7 * 2 + 175 / 10
    assert seconds(model(2, None), 20) == 8 * 2


@pytest.mark.parametrize(
    ("known", "np", "chunk"),
    [
        (model(2, 2), 3, 20),  # sqrt(100 * 2 * 2 / 1)
        (model(2, 2), 6, 10),  # sqrt(100 * 2 * 2 / 4)
        (model(2, 2), 2, 100),
        (model(2, None), 3, 100),
        (model(200, 200), 3, 100),  # no larger than the message
        (model(0.005, 1), 3, 1),  # no smaller than a byte
        (model(2, 2, rendezvous=6, limit=10), 3, 10),  # 77 s; 40 bytes with a rendezvous: 98 s
        (model(2, 2, rendezvous=0.425, limit=10), 3, 22),  # 74.4 s
    ],
)
def test_the_best_chunk_of_100_bytes(known: Fit, np: int, chunk: int) -> None:
    assert known.best_chunk(np, 100) == chunk


@pytest.mark.parametrize(
    ("np", "ranks_per_node", "level"),
    [
        (4, 1, "between nodes"),
        (2, 1, "between nodes"),
        (4, 2, "both"),
        (4, 4, "within a node"),
        (2, 2, "within a node"),
    ],
)
def test_the_level_follows_from_the_ranks_per_node(np: int, ranks_per_node: int, level: str) -> None:
    assert level_of(np, ranks_per_node) == level


def test_two_points_determine_start_up_time_and_bandwidth() -> None:
    """10 bytes take 3 s and 20 bytes 4 s: 2 s of start-up, and 10 bytes per second."""
    points = [timed(10, 3, 2, 100), timed(20, 4)]
    without_formula = timed(40, 100, name="smp")
    [(key, found)] = fit([*points, without_formula]).items()
    assert key == ("between nodes", None)
    assert found.start_seconds == pytest.approx(2, rel=1e-3)
    assert found.bytes_per_second == pytest.approx(10, rel=1e-3)
    assert (found.rendezvous_seconds, found.eager_limit_bytes, found.points) == (0, None, 2)
    assert fit([points[0], without_formula]) == {}


def test_messages_above_the_eager_limit_show_the_rendezvous() -> None:
    """1 s of start-up, 100 bytes per second, and a rendezvous of 2 s above 100 bytes."""
    points = [timed(50, 1.5), timed(100, 2), timed(200, 5), timed(400, 7)]
    [found] = fit(points, default_eager_limit=100).values()
    assert found.start_seconds == pytest.approx(1, rel=1e-2)
    assert found.bytes_per_second == pytest.approx(100, rel=1e-2)
    assert found.rendezvous_seconds == pytest.approx(2, rel=1e-2)


def test_a_fit_has_the_eager_limit_of_its_points_or_the_default() -> None:
    kinds: list[dict[str, Any]] = [{}, {"eager_limit_bytes": 64}, {"eager_limit_bytes": 64, "ranks_per_node": 2}]
    points = [timed(size, 1, **kind) for size in (10, 20) for kind in kinds]
    found = fit(points, default_eager_limit=32)
    assert {key: (one.level, one.eager_limit_bytes) for key, one in found.items()} == {
        ("between nodes", None): ("between nodes", 32),
        ("between nodes", 64): ("between nodes", 64),
        ("within a node", 64): ("within a node", 64),
    }


def test_no_fitted_cost_is_negative() -> None:
    """Errors of a factor of sqrt(2) in both directions: 41 and 29 %."""
    small, large = 10_000_000, 20_000_000
    [found] = fit([timed(small, 1e-3), timed(large, 4e-3)]).values()  # a line through both starts at -2 ms
    assert found.start_seconds == 0
    assert found.bytes_per_second == pytest.approx(1e10 / math.sqrt(2), rel=1e-3)
    assert found.error_percent == pytest.approx(50 / math.sqrt(2), rel=1e-2)
    [found] = fit([timed(small, 2e-3), timed(large, 1e-3)]).values()
    assert found.start_seconds == pytest.approx(1e-3 * math.sqrt(2), rel=1e-3)
    assert found.bytes_per_second is None
    assert found.error_percent == pytest.approx(50 / math.sqrt(2), rel=1e-2)


def test_an_algorithm_far_from_its_formula_has_less_influence() -> None:
    """The pull of an error x is x / sqrt(1 + (x / 0.1)**2): that of 0.2 is twice that of 0.05.

    With squared errors alone the logarithm would be 0.25 / 3.
    """
    points = [  # each sends one message of 100 bytes
        timed(100, 1),
        timed(200, 1, name="ring", operation="allgather"),
        timed(200, math.exp(0.25), name="linear", operation="gather"),
    ]
    [found] = fit(points).values()
    for point in points:
        predicted = found.seconds(point.operation, 2, point.bytes, point.choice)
        assert predicted == pytest.approx(math.exp(0.05), rel=1e-4)


def test_each_size_has_the_same_weight_whatever_the_number_of_choices() -> None:
    """Between two ranks all four algorithms send two messages, and the bytes once."""
    names = ("ring", "segmented_ring", "reduce_scatter_allgather")
    reductions = [timed(100, 1.02, name=name) for name in names]
    broadcast = timed(100, 1, name="scatter_allgather", operation="broadcast")
    [found] = fit([*reductions, broadcast]).values()
    assert found.seconds("allreduce", 2, 100, reductions[0].choice) == pytest.approx(math.sqrt(1.02), rel=1e-3)


@pytest.mark.parametrize(
    ("operation", "nodes", "seconds"),
    [
        ("broadcast", 4, 10),
        ("allreduce", 4, 15),
        ("allgather", 4, 7.5),
        ("gather", 4, 7.5),
        ("allreduce", 2, 10),
        ("gather", 2, 5),
        ("broadcast", 1, 0),
    ],
)
def test_the_least_seconds_of_the_links_for_100_bytes(operation: str, nodes: int, seconds: float) -> None:
    assert wire_seconds(operation, nodes, 100, bytes_per_second=10) == seconds


def test_an_algorithm_without_a_formula_has_no_cost() -> None:
    assert critical_path("broadcast", 4, MIB, AlgorithmChoice()) is None
    assert model(1, 1).seconds("allreduce", 4, MIB, AlgorithmChoice(library_algorithm="smp")) is None
