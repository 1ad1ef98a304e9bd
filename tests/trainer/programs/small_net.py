"""A super-resolution model with batch normalisation."""

from torch import nn


def net(scale: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3 * scale**2, 3, padding=1)),
        nn.PixelShuffle(scale),
    )
