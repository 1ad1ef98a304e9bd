"""What ranks send and must receive is exact in every type, and a fault in it is seen."""

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
def test_sums_are_exact_in_any_order_on_any_number_of_ranks(np_: int) -> None:
    """No part is negative, so what any subset of ranks adds up to is a whole number not above the
    total.
    """
    parts = np.array([addend(rank, np_) for rank in range(np_)])
    assert parts.min() >= 0
    assert parts.sum(axis=0).max() <= LARGEST_EXACT
    assert np.array_equal(parts.sum(axis=0), total(np_))
    assert (parts.max(axis=1) > 0).all()  # no rank could be left out unseen


@pytest.mark.parametrize("name", KINDS)
def test_every_type_holds_them(name: str) -> None:
    kind, numbers = elements.find_dtype(name), np.arange(LARGEST_EXACT + 1)
    assert [kind.decode(bits) for bits in kind.encode(numbers)] == numbers.tolist()


def test_ranks_send_different_things() -> None:
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
def test_data_at_a_wrong_place_is_seen(shift: int) -> None:
    """A library that is off by a chunk must not give the same numbers."""
    pattern = elements.find_dtype("float32").encode(total(4))
    array = np.empty(3 << 20, np.uint32)
    fill(array, pattern)
    wrong, first = find_wrong(np.roll(array, shift), pattern)
    assert wrong > len(array) / 2
    assert first is not None


@pytest.mark.parametrize("name", sorted(COLLECTIVES.all()))
@pytest.mark.parametrize("np_", [2, 3])
def test_what_is_expected_follows_from_what_all_send(name: str, np_: int) -> None:
    """By the definition of each collective in the MPI standard."""
    collective, root = COLLECTIVES.all()[name], 1
    sent = [collective.sends(rank, np_, root) for rank in range(np_)]
    for rank in range(np_):
        got = collective.expects(rank, np_, root)
        wanted: Any
        match name:
            case "allreduce":
                wanted = [sum(blocks[0] for blocks in sent)]
            case "reduce":
                wanted = [sum(blocks[0] for blocks in sent)] if rank == root else None
            case "broadcast":
                wanted = sent[root]
            case "gather":
                wanted = [blocks[0] for blocks in sent] if rank == root else None
            case "allgather":
                wanted = [blocks[0] for blocks in sent]
            case "reduce-scatter":
                wanted = [sum(blocks[rank] for blocks in sent)]
            case "alltoall":
                wanted = [blocks[rank] for blocks in sent]
            case "barrier":
                wanted = None
        assert (got is None) == (wanted is None)
        assert np.array_equal(got or [], wanted or [])


def test_blocks_of_a_sum_differ() -> None:
    assert not np.array_equal(block_addend(0, 2, 0), block_addend(0, 2, 1))
