"""Small classifiers for `hvscale train`, as PACKAGE.MODULE:FUNCTION."""

import time

import torch
from torch import Tensor, nn

from hvscale.bench.gpu_check.rank_side.requests import OVERFLOW_STEP

# Times the gradient, in the overflow's step: far above fp16's 65504, whatever the loss scale.
OVERFLOW_FACTOR = 1e9
SLOW_SECONDS = 0.02


class Classifier(nn.Module):
    """Without batch normalisation and dropout, so that ranks compute what one process does."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(128, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


class Overflowing(Classifier):
    """Its gradients overflow fp16 once, in training step OVERFLOW_STEP; its loss does not."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.steps = 0

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        if not self.training:
            return logits
        self.steps += 1
        return Enlarge.apply(logits) if self.steps == OVERFLOW_STEP else logits


class Slow(Classifier):
    """Takes at least SLOW_SECONDS for a training step, so that a rank can be killed meanwhile."""

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            time.sleep(SLOW_SECONDS)
        return super().forward(images)


class Enlarge(torch.autograd.Function):
    """The identity, with a gradient OVERFLOW_FACTOR times as large."""

    @staticmethod
    def forward(context: object, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        return gradient * OVERFLOW_FACTOR


def classifier(num_classes: int = 2) -> nn.Module:
    return Classifier(num_classes)


def overflowing(num_classes: int = 2) -> nn.Module:
    return Overflowing(num_classes)


def slow(num_classes: int = 2) -> nn.Module:
    return Slow(num_classes)
