"""The race: which choices it measures, how often, and which it finds, on simulated times."""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from hvscale.comm_tuning.collectives.decide.decide import MAX_LOSS_RATIO
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, AlgorithmChoice
from hvscale.comm_tuning.collectives.measure.candidates import candidates
from hvscale.comm_tuning.collectives.measure.race import (
    EXHAUSTIVE_SAMPLES,
    HOPELESS_RATIO,
    NO_EARLIER_SIZES,
    AlgorithmVariant,
    EarlierSizes,
    Race,
    SizeState,
    earlier_sizes,
    exhaustive,
    race,
    sizes_at_crossovers,
    variants_at,
)

KIB, MIB = 1 << 10, 1 << 20
NP = 4
CHOICES = [candidate.choice for candidate in candidates("openmpi", "broadcast", NP)]
LATENCY, BANDWIDTH = 20e-6, 1.25e8
FAST = AlgorithmVariant(("chain", None, None), 4 * KIB, 4)
Variant = AlgorithmVariant
Seconds = Callable[[Variant, int], float]


def by_model(variant: Variant, size: int) -> float:
    """A chain in parts is best for large messages, a tree for small ones.

    The library's own choice is a slower tree for all.
    """
    algorithm, named, _ = variant.kind
    part = variant.part or size
    name = named if algorithm == "library" else algorithm
    match name:
        case "chain" | "pipeline":
            return (NP - 2 + size / part) * (LATENCY + part / BANDWIDTH)
        case "k-nomial" | "binomial" | "knomial":
            return 2 * (LATENCY + size / BANDWIDTH)
        case None | "auto":
            return 1.2 * 2 * (LATENCY + size / BANDWIDTH)
        case _:
            return 5 * (LATENCY + size / BANDWIDTH)


def run(
    state: SizeState, course: Race, seconds: Seconds = by_model, spread: float = 0.01
) -> tuple[list[Variant], Counter[Variant]]:
    """The finalists, and how often each variant was measured."""
    noise = np.random.default_rng(0)
    counted: Counter[Variant] = Counter()
    try:
        variant = next(course)
        while True:
            counted[variant] += 1
            variant = course.send(seconds(variant, state.size) * float(noise.lognormal(0, spread)))
    except StopIteration as finished:
        return finished.value, counted


def state_of(size: int, choices: list[AlgorithmChoice] | None = None) -> SizeState:
    return SizeState(size, variants_at(choices or CHOICES, size))


def never() -> bool:
    return False


def measured(sizes: list[int]) -> list[SizeState]:
    states: list[SizeState] = []
    for size in sizes:
        state = state_of(size)
        run(state, race(state, earlier_sizes(states), {}, never))
        states.append(state)
    return states


@pytest.mark.parametrize("size", [KIB, 64 * KIB, MIB, 64 * MIB])
def test_the_best_is_found_with_few_samples(size: int) -> None:
    state = state_of(size)
    finalists, counted = run(state, race(state, NO_EARLIER_SIZES, {}, never))
    best = min(by_model(variant, size) for variant in state.members)
    found = min(finalists, key=lambda variant: state.time(variant).median)
    assert by_model(found, size) <= MAX_LOSS_RATIO * best
    if size > 64 * KIB:
        assert len(counted) < len(state.members)
    # Poor variants get few samples.
    poor = [variant for variant in counted if by_model(variant, size) > 2 * best and variant != state.baseline]
    assert all(counted[variant] <= 3 for variant in poor)
    good = [variant for variant in counted if by_model(variant, size) <= best * 1.005]
    assert max(counted[variant] for variant in good) > 3 or len(good) > 6


def test_equivalent_choices_are_measured_once() -> None:
    state = state_of(4 * KIB)
    [chain] = [
        choices
        for variant, choices in state.members.items()
        if variant.kind == ("chain", None, None) and variant.part is None
    ]
    assert {choice.chunk_bytes for choice in chain} == {4 * KIB << power for power in range(8)}
    assert sum(map(len, state.members.values())) == len(CHOICES)


def test_the_baseline_is_measured_even_without_time() -> None:
    state = state_of(MIB)
    finalists, counted = run(state, race(state, NO_EARLIER_SIZES, {}, lambda: True))
    assert finalists[0] == next(iter(counted)) == state.baseline
    assert state.members[state.baseline] == [LIBRARY]
    assert len(counted) <= 2


def test_earlier_measurements_are_not_repeated() -> None:
    state = state_of(MIB)
    _, first = run(state, race(state, NO_EARLIER_SIZES, {}, never))
    again = SizeState(MIB, state.members, {variant: list(times) for variant, times in state.times.items()})
    _, second = run(again, race(again, NO_EARLIER_SIZES, {}, never))
    assert second.total() < 0.2 * first.total()


def test_hopeless_variants_are_not_tried_at_larger_sizes() -> None:
    states = measured([MIB, 4 * MIB])
    earlier = earlier_sizes(states)
    linear = Variant(("library", "linear", None), None, None)
    assert linear in earlier.hopeless
    assert states[-1].ratio(linear) > HOPELESS_RATIO
    state = state_of(16 * MIB)
    _, counted = run(state, race(state, earlier, {}, never))
    assert linear not in counted
    assert ("chain", None, None) in {variant.kind for variant in counted}
    states.append(state)
    assert linear in earlier_sizes(states).hopeless


def test_unmeasured_variants_are_tried_again_while_calls_are_cheap() -> None:
    linear = Variant(("library", "linear", None), None, None)
    states = [SizeState(size, {}, {linear: [3e-3], FAST: [1e-3]}) for size in (KIB, 4 * KIB)]
    assert earlier_sizes(states).hopeless == {linear}
    states.append(SizeState(16 * KIB, {}, {FAST: [1e-3]}))
    assert not earlier_sizes(states).hopeless


def test_improving_variants_are_not_hopeless() -> None:
    linear = Variant(("library", "linear", None), None, None)
    states = [SizeState(MIB, {}, {linear: [3.0], FAST: [1.0]}), SizeState(4 * MIB, {}, {linear: [2.5], FAST: [1.0]})]
    assert not earlier_sizes(states).hopeless


def test_the_proposed_chunk_is_tried() -> None:
    state = state_of(
        64 * MIB,
        [LIBRARY, *(AlgorithmChoice(algorithm="chain", chunk_bytes=4096 << power, depth=4) for power in range(8))],
    )

    def cliff(variant: Variant, size: int) -> float:
        """Only one chunk is good, and the search of neighbours does not reach it."""
        return 0.1 if variant.part == 512 * KIB else 1.0

    _, counted = run(
        state, race(state, EarlierSizes({}, frozenset()), {("chain", None, None): 500 * KIB}, never), cliff
    )
    assert 512 * KIB in {variant.part for variant in counted}


def test_sizes_are_added_where_the_best_changes() -> None:
    states = measured([4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB])
    added = sizes_at_crossovers(states)
    assert added
    assert all(size & (size - 1) == 0 for size in added)
    sizes = [state.size for state in states]
    for size in added:
        assert any(small < size < large for small, large in itertools.pairwise(sizes))
    # The same choice is best at both sizes, so no size is added between them.
    assert not any(16 * MIB < size < 64 * MIB for size in added)


def test_an_exhaustive_sweep_measures_all_equally_often() -> None:
    state = state_of(MIB)
    found, counted = run(state, exhaustive(state, never))
    assert set(found) == set(state.members)
    assert set(counted.values()) == {EXHAUSTIVE_SAMPLES}


def always() -> bool:
    return True


@pytest.mark.parametrize("limited", [exhaustive, lambda state, over: race(state, NO_EARLIER_SIZES, {}, over)])
def test_the_baseline_is_measured_though_the_time_is_used_up(limited: Callable[..., Race]) -> None:
    state = state_of(MIB)
    found, counted = run(state, limited(state, always))
    assert found == [*counted] == [*state.times] == [state.baseline]


def test_a_resumed_sweep_measures_nothing_if_the_time_is_used_up() -> None:
    state = state_of(MIB)
    state.times[state.baseline] = [1.0]
    assert run(state, exhaustive(state, always)) == ([state.baseline], Counter())


def test_the_race_takes_a_quarter_of_the_time_of_an_exhaustive_sweep() -> None:
    """In simulated time; the chosen variant loses at most 3 %."""
    sizes = [KIB << step for step in range(0, 17, 2)]
    spent = {"race": 0.0, "exhaustive": 0.0}
    states: list[SizeState] = []
    for size in sizes:
        state, every = state_of(size), state_of(size)
        finalists, counted = run(state, race(state, earlier_sizes(states), {}, never))
        states.append(state)
        _, all_counted = run(every, exhaustive(every, never))
        spent["race"] += cost(counted, size)
        spent["exhaustive"] += cost(all_counted, size)
        chosen = min(finalists, key=lambda variant: state.time(variant).median)
        best = min(every.members, key=lambda variant: every.time(variant).median)
        assert by_model(chosen, size) <= MAX_LOSS_RATIO * by_model(best, size)
    assert spent["race"] <= spent["exhaustive"] / 4


def cost(counted: Mapping[Variant, int], size: int) -> float:
    return sum(number * by_model(variant, size) for variant, number in counted.items())


@pytest.mark.parametrize(
    ("mpi", "operation"), [("openmpi", "allreduce"), ("mpich", "broadcast"), ("mvapich2", "gather")]
)
@pytest.mark.parametrize("np_", [2, 3, 8])
def test_candidates_include_library_algorithms_and_own_broadcasts(mpi: str, operation: str, np_: int) -> None:
    found = candidates(mpi, operation, np_)  # type: ignore[arg-type]
    assert found[0].choice == LIBRARY
    assert not found[0].variables
    choices = [candidate.choice for candidate in found]
    assert len(set(choices)) == len(choices)
    assert any(choice.algorithm != "library" for choice in choices) == (operation == "broadcast")
    assert all(candidate.variables for candidate in found if candidate.choice.library_algorithm is not None)
    names = {choice.library_algorithm for choice in choices}
    if mpi == "mpich":
        assert ("scatter_allgather" in names) == (np_ != 3)
