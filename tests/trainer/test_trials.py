"""The sums that a trial of `tune` checks are exact on any number of ranks."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hvscale.core.exact_sums import offset
from hvscale.trainer.hooks.trials import wrong_sums


def ranks(size: int, error: float = 0) -> Any:
    """Stands for rank 0 of so many ranks, which add their numbers one after the other in fp32."""

    def allreduce(numbers: torch.Tensor, **_: Any) -> torch.Tensor:
        total = numbers.clone()
        for rank in range(1, size):
            total += numbers + offset(rank)
        return total + error

    horovod = SimpleNamespace(allreduce=allreduce, Sum="sum")
    return SimpleNamespace(hvd=horovod, rank=0, size=size, allgather=lambda own: [own] * size)


@pytest.mark.parametrize("size", [1, 2, 4900, 6000, 20_000])
def test_correct_sums_are_exact(size: int) -> None:
    assert wrong_sums(ranks(size), nn.Linear(50, 40)) is None


@pytest.mark.parametrize("size", [2, 6000])
def test_a_wrong_sum_is_found(size: int) -> None:
    assert wrong_sums(ranks(size, error=1), nn.Linear(1, 1)) == "rank 0: 1 of 1 sums are wrong"
