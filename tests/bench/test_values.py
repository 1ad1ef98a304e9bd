"""Test data of the collectives: exact in every type, and wrong results are detected."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.bench.collectives import elements
from hvscale.bench.collectives.elements import (
    LARGEST_EXACT,
    PERIOD,
    addend,
    block_addend,
    fill,
    find_wrong,
    sender_pattern,
    total,
)
from hvscale.bench.collectives.operations import COLLECTIVES

KINDS = sorted(elements.DTYPES)


@pytest.mark.parametrize("np_", [2, 3, 16, 64, 65, 128, 1000])
def test_sums_are_exact_in_any_order_for_any_number_of_ranks(np_: int) -> None:
    """No addend is negative, so every partial sum is an integer no larger than the total."""
    addends = np.array([addend(rank, np_) for rank in range(np_)])
    assert addends.min() >= 0
    assert addends.sum(axis=0).max() <= LARGEST_EXACT
    assert np.array_equal(addends.sum(axis=0), total(np_))
    assert (addends.max(axis=1) > 0).all()  # a missing rank changes the sum


@pytest.mark.parametrize("name", KINDS)
def test_every_type_represents_the_values_exactly(name: str) -> None:
    kind, numbers = elements.find_dtype(name), np.arange(LARGEST_EXACT + 1)
    assert [kind.decode(bits) for bits in kind.encode(numbers)] == numbers.tolist()


def test_ranks_send_different_data() -> None:
    for np_ in (2, 5, 64):
        sent = {tuple(sender_pattern(source, target)) for source in range(np_) for target in range(np_)}
        assert len(sent) >= min(np_ * np_, PERIOD)
        assert len({tuple(addend(rank, np_)) for rank in range(np_)}) == np_


@given(st.sampled_from(KINDS), st.integers(1, 3 * PERIOD), st.data())
@settings(max_examples=60)
def test_every_wrong_element_is_found(name: str, length: int, data: st.DataObject) -> None:
    kind = elements.find_dtype(name)
    pattern = kind.encode(sender_pattern(1))
    array = np.empty(length, kind.bits_type)
    fill(array, pattern)
    assert find_wrong(array, pattern) == (0, None)
    places = data.draw(st.sets(st.integers(0, length - 1), min_size=1, max_size=5))
    for place in places:
        array[place] ^= kind.bits_type(data.draw(st.integers(1, 2 ** (8 * kind.bytes) - 1)))
    assert find_wrong(array, pattern) == (len(places), min(places))


@pytest.mark.parametrize("shift", [1, 4, 4096, 1 << 16, 1 << 20])
def test_shifted_data_is_detected(shift: int) -> None:
    """Data shifted by a chunk must not equal the expected data."""
    pattern = elements.find_dtype("float32").encode(total(4))
    array = np.empty(3 << 20, np.uint32)
    fill(array, pattern)
    wrong, first = find_wrong(np.roll(array, shift), pattern)
    assert wrong > len(array) / 2
    assert first is not None


@pytest.mark.parametrize("name", sorted(COLLECTIVES.all()))
@pytest.mark.parametrize("np_", [2, 3])
def test_expected_results_follow_from_the_sent_data(name: str, np_: int) -> None:
    """Compares with the definition of each collective in the MPI standard."""
    collective, root = COLLECTIVES.all()[name], 1
    sent = [collective.sends(rank, np_, root) for rank in range(np_)]
    for rank in range(np_):
        received = collective.expects(rank, np_, root)
        expected: Any
        match name:
            case "allreduce":
                expected = [sum(blocks[0] for blocks in sent)]
            case "reduce":
                expected = [sum(blocks[0] for blocks in sent)] if rank == root else None
            case "broadcast":
                expected = sent[root]
            case "gather":
                expected = [blocks[0] for blocks in sent] if rank == root else None
            case "allgather":
                expected = [blocks[0] for blocks in sent]
            case "reduce-scatter":
                expected = [sum(blocks[rank] for blocks in sent)]
            case "alltoall":
                expected = [blocks[rank] for blocks in sent]
            case "barrier":
                expected = None
        assert (received is None) == (expected is None)
        assert np.array_equal(received or [], expected or [])


def test_blocks_of_a_rank_differ() -> None:
    assert not np.array_equal(block_addend(0, 2, 0), block_addend(0, 2, 1))
