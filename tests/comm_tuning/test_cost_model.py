"""The cost model: the fit recovers known parameters, and the best chunk is optimal."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.comm_tuning.collectives.decide.cost_model import COSTS, Fit, critical_path, fit
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


def model(start: float, bandwidth: float, rendezvous: float = 0, limit: int | None = None) -> Fit:
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


def test_an_algorithm_without_a_formula_has_no_cost() -> None:
    assert critical_path("broadcast", 4, MIB, AlgorithmChoice()) is None
    assert model(1, 1).seconds("allreduce", 4, MIB, AlgorithmChoice(library_algorithm="smp")) is None
