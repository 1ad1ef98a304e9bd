"""How precision and memory format are timed before training."""

import time

import pytest
import torch
from torch import Tensor, nn

from hvscale.trainer.system.precision import ComputeFormat, images_per_second

FORMATS = [ComputeFormat("fp32", channels_last=False), ComputeFormat("fp32", channels_last=True)]
WARM_UP = 1 + len(FORMATS)  # the length of a step decides about the batch


class Sleeping(nn.Module):
    """Counts its steps; each takes so many seconds, and more with images that are channels-last."""

    def __init__(self, seconds: float, more_seconds: float = 0) -> None:
        super().__init__()
        self.seconds, self.more_seconds, self.steps = seconds, more_seconds, 0
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, images: Tensor) -> Tensor:
        self.steps += 1
        time.sleep(self.seconds + self.more_seconds * images.is_contiguous(memory_format=torch.channels_last))
        return self.factor * images


def speeds(model: nn.Module) -> list[float]:
    images = torch.ones(2, 3, 4, 4)
    return images_per_second(model, nn.functional.l1_loss, images, images, FORMATS)


@pytest.mark.parametrize(("seconds", "rounds"), [(0, 20), (0.25, 2)])
def test_short_steps_are_timed_twenty_times_and_long_ones_twice(seconds: float, rounds: int) -> None:
    model = Sleeping(seconds)
    speeds(model)
    assert model.steps == WARM_UP + rounds * len(FORMATS)


def test_the_faster_format_is_found() -> None:
    contiguous, channels_last = speeds(Sleeping(0, more_seconds=0.05))
    assert contiguous > channels_last
