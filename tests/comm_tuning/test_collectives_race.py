"""Which choices are measured, how often, and which is found: on times made up by a model, with noise."""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from hvscale.comm_tuning.collectives.decide.decide import LOSS
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, Choice
from hvscale.comm_tuning.collectives.measure.candidates import candidates
from hvscale.comm_tuning.collectives.measure.race import (
    EXHAUSTIVE_SAMPLES,
    HOPELESS,
    NOTHING_BEFORE,
    Before,
    Field,
    Race,
    Way,
    before,
    exhaustive,
    race,
    refined,
    ways,
)

KIB, MIB = 1 << 10, 1 << 20
NP = 4
CHOICES = [candidate.choice for candidate in candidates("openmpi", "broadcast", NP)]
LATENCY, BANDWIDTH = 20e-6, 1.25e8
FAST = Way(("chain", None, None), 4 * KIB, 4)
Seconds = Callable[[Way, int], float]


def by_model(way: Way, size: int) -> float:
    """A chain in parts is the best for large messages, a tree for small ones; the library's own is a bad tree for all."""
    algorithm, named, _ = way.kind
    part = way.part or size
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


def run(of: Field, course: Race, seconds: Seconds = by_model, spread: float = 0.01) -> tuple[list[Way], Counter[Way]]:
    """The ways told apart at the end, and how often each was measured."""
    noise = np.random.default_rng(0)
    counted: Counter[Way] = Counter()
    try:
        way = next(course)
        while True:
            counted[way] += 1
            way = course.send(seconds(way, of.size) * float(noise.lognormal(0, spread)))
    except StopIteration as finished:
        return finished.value, counted


def field(size: int, choices: list[Choice] | None = None) -> Field:
    return Field(size, ways(choices or CHOICES, size))


def never() -> bool:
    return False


def measured(sizes: list[int]) -> list[Field]:
    fields: list[Field] = []
    for size in sizes:
        of = field(size)
        run(of, race(of, before(fields), {}, never))
        fields.append(of)
    return fields


@pytest.mark.parametrize("size", [KIB, 64 * KIB, MIB, 64 * MIB])
def test_the_best_is_found_with_few_samples(size: int) -> None:
    of = field(size)
    told_apart, counted = run(of, race(of, NOTHING_BEFORE, {}, never))
    best = min(by_model(way, size) for way in of.members)
    found = min(told_apart, key=lambda way: of.time(way).median)
    assert by_model(found, size) <= LOSS * best
    if size > 64 * KIB:
        assert len(counted) < len(of.members)
    # What is far from the best is looked at, and left.
    poor = [way for way in counted if by_model(way, size) > 2 * best and way != of.base]
    assert all(counted[way] <= 3 for way in poor)
    good = [way for way in counted if by_model(way, size) <= best * 1.005]
    assert max(counted[way] for way in good) > 3 or len(good) > 6


def test_choices_that_are_the_same_at_a_size_are_measured_once() -> None:
    of = field(4 * KIB)
    [chain] = [choices for way, choices in of.members.items() if way.kind == ("chain", None, None) and way.part is None]
    assert {choice.chunk_bytes for choice in chain} == {4 * KIB << power for power in range(8)}
    assert sum(map(len, of.members.values())) == len(CHOICES)


def test_the_library_itself_is_measured_even_when_there_is_no_time() -> None:
    of = field(MIB)
    told_apart, counted = run(of, race(of, NOTHING_BEFORE, {}, lambda: True))
    assert told_apart[0] == next(iter(counted)) == of.base
    assert of.members[of.base] == [LIBRARY]
    assert len(counted) <= 2


def test_what_is_known_is_not_measured_again() -> None:
    of = field(MIB)
    _, first = run(of, race(of, NOTHING_BEFORE, {}, never))
    again = Field(MIB, of.members, {way: list(times) for way, times in of.times.items()})
    _, second = run(again, race(again, NOTHING_BEFORE, {}, never))
    assert second.total() < 0.2 * first.total()


def test_what_has_no_hope_is_not_tried_at_larger_sizes() -> None:
    fields = measured([MIB, 4 * MIB])
    earlier = before(fields)
    linear = Way(("library", "linear", None), None, None)
    assert linear in earlier.hopeless
    assert fields[-1].ratio(linear) > HOPELESS
    of = field(16 * MIB)
    _, counted = run(of, race(of, earlier, {}, never))
    assert linear not in counted
    assert ("chain", None, None) in {way.kind for way in counted}
    fields.append(of)
    assert linear in before(fields).hopeless


def test_what_was_left_out_is_tried_again_while_that_is_cheap() -> None:
    linear = Way(("library", "linear", None), None, None)
    fields = [Field(size, {}, {linear: [3e-3], FAST: [1e-3]}) for size in (KIB, 4 * KIB)]
    assert before(fields).hopeless == {linear}
    fields.append(Field(16 * KIB, {}, {FAST: [1e-3]}))
    assert not before(fields).hopeless


def test_what_grows_better_is_not_without_hope() -> None:
    linear = Way(("library", "linear", None), None, None)
    fields = [Field(MIB, {}, {linear: [3.0], FAST: [1.0]}), Field(4 * MIB, {}, {linear: [2.5], FAST: [1.0]})]
    assert not before(fields).hopeless


def test_the_model_s_chunk_is_tried() -> None:
    of = field(
        64 * MIB, [LIBRARY, *(Choice(algorithm="chain", chunk_bytes=4096 << power, depth=4) for power in range(8))]
    )

    def cliff(way: Way, size: int) -> float:
        """Only one chunk is good: its neighbours do not lead to it."""
        return 0.1 if way.part == 512 * KIB else 1.0

    _, counted = run(of, race(of, Before({}, frozenset()), {("chain", None, None): 500 * KIB}, never), cliff)
    assert 512 * KIB in {way.part for way in counted}


def test_sizes_are_added_where_the_best_changes() -> None:
    fields = measured([4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB])
    added = refined(fields)
    assert added
    assert all(size & (size - 1) == 0 for size in added)
    sizes = [of.size for of in fields]
    for size in added:
        assert any(small < size < large for small, large in itertools.pairwise(sizes))
    # The same is best at both: nothing to find between them.
    assert not any(16 * MIB < size < 64 * MIB for size in added)


def test_an_exhaustive_sweep_measures_all_equally_often() -> None:
    of = field(MIB)
    found, counted = run(of, exhaustive(of, never))
    assert set(found) == set(of.members)
    assert set(counted.values()) == {EXHAUSTIVE_SAMPLES}


def test_the_search_takes_a_quarter_of_an_exhaustive_sweep_s_time() -> None:
    """By the model's times, and what it chooses loses at most 3 %."""
    sizes = [KIB << step for step in range(0, 17, 2)]
    spent = {"race": 0.0, "exhaustive": 0.0}
    fields: list[Field] = []
    for size in sizes:
        of, every = field(size), field(size)
        told_apart, counted = run(of, race(of, before(fields), {}, never))
        fields.append(of)
        _, all_counted = run(every, exhaustive(every, never))
        spent["race"] += cost(counted, size)
        spent["exhaustive"] += cost(all_counted, size)
        chosen = min(told_apart, key=lambda way: of.time(way).median)
        best = min(every.members, key=lambda way: every.time(way).median)
        assert by_model(chosen, size) <= LOSS * by_model(best, size)
    assert spent["race"] <= spent["exhaustive"] / 4


def cost(counted: Mapping[Way, int], size: int) -> float:
    return sum(number * by_model(way, size) for way, number in counted.items())


@pytest.mark.parametrize(
    ("mpi", "operation"), [("openmpi", "allreduce"), ("mpich", "broadcast"), ("mvapich2", "gather")]
)
@pytest.mark.parametrize("np_", [2, 3, 8])
def test_candidates_are_those_of_the_library_and_ours(mpi: str, operation: str, np_: int) -> None:
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
