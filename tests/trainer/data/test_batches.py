"""The order of samples, and loading batches ahead of time."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.trainer.data.batches import EpochOrder, Position, Prefetch
from tests.conftest import HANG_SECONDS


@given(
    samples=st.integers(12, 60),
    seed=st.integers(0, 99),
    arrangement=st.sampled_from([(1, 12), (2, 6), (3, 4), (12, 1)]),
)
def test_epoch_uses_each_sample_once_for_any_number_of_ranks(
    samples: int, seed: int, arrangement: tuple[int, int]
) -> None:
    size, batch_size = arrangement
    order, joint = EpochOrder(samples, seed, 12), EpochOrder(samples, seed, 12)
    for epoch in range(2):
        seen = []
        for step in range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch):
            by_rank = [sample for rank in range(size) for sample in order.samples_of(step, rank, batch_size)]
            assert by_rank == joint.samples_of(step, 0, 12)
            seen += [sample.index for sample in by_rank]
            assert {sample.epoch for sample in by_rank} == {epoch}
        assert len(set(seen)) == len(seen) == samples - samples % 12


@given(
    samples=st.integers(12, 60),
    seed=st.integers(0, 99),
    changes=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=6),
)
def test_changed_number_of_ranks_divides_the_rest_of_the_epoch(
    samples: int, seed: int, changes: list[tuple[int, int]]
) -> None:
    """For any sequence of rank counts, an epoch is the start of one permutation."""
    step, position = 0, Position(0, 0)
    epochs: dict[int, list[int]] = {}
    for size, steps in changes:
        order = EpochOrder(samples, seed, 2 * size)
        counted = order.resume(step, position)
        for number in range(step, step + steps):
            for rank in range(size):
                for own in order.samples_of(number, rank, 2):
                    epochs.setdefault(own.epoch, []).append(own.index)
            epoch_ends = order.position(number + 1).epoch > order.position(number).epoch
            assert epoch_ends == ((counted + number - step + 1) % order.steps_per_epoch == 0)
        step += steps
        position = order.position(step)
    most = 2 * max(size for size, _ in changes)
    for epoch, used in epochs.items():
        whole = np.random.default_rng([seed, epoch]).permutation(samples).tolist()
        assert used == whole[: len(used)]
        assert epoch == max(epochs) or len(used) > samples - most


def test_epochs_and_seeds_differ() -> None:
    order = EpochOrder(50, 1, 50)
    assert order.samples_of(0, 0, 50) != order.samples_of(1, 0, 50)
    assert [sample.index for sample in order.samples_of(0, 0, 50)] != [
        sample.index for sample in EpochOrder(50, 2, 50).samples_of(0, 0, 50)
    ]


def test_fewer_samples_than_a_step_needs() -> None:
    with pytest.raises(
        RequestError, match="a step takes 8 images over all ranks, but there are only 7: lower --batch-size"
    ):
        EpochOrder(7, 1, 8)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_batches_come_in_order_for_any_number_of_workers(workers: int) -> None:
    with Prefetch(lambda step: step * step, workers) as batches:
        assert [batches.get(step) for step in range(20)] == [step * step for step in range(20)]


def test_batches_are_loaded_ahead() -> None:
    third = threading.Event()

    def load(step: int) -> int:
        if step == 3:
            third.set()
        return step

    with Prefetch(load, 3) as batches:
        batches.get(0)
        assert third.wait(HANG_SECONDS)


def test_failed_batch_raises_when_it_is_requested() -> None:
    def load(step: int) -> int:
        if step == 2:
            raise RequestError("b.png cannot be decoded")
        return step

    with Prefetch(load, 2) as batches:
        assert [batches.get(0), batches.get(1)] == [0, 1]
        with pytest.raises(RequestError, match=r"b\.png"):
            batches.get(2)
