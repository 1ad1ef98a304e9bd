"""EDSR: enhanced deep residual networks for single-image super-resolution (Lim et al., 2017).

State-dict keys match those of the public PyTorch implementation, so its checkpoints load.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from hvscale.core.errors import RequestError
from hvscale.models.registry import register

# Mean colour of DIV2K's 800 training photos as a fraction of rgb_range, from the public code.
DIV2K_MEAN_RGB = (0.4488, 0.4371, 0.4040)


def conv3x3(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)


class MeanShift(nn.Conv2d):
    """Adds (`sign` 1) or subtracts (-1) the mean colour.

    It is a frozen 1x1 convolution, as in public checkpoints.
    """

    def __init__(self, rgb_range: float, sign: Literal[-1, 1]) -> None:
        super().__init__(3, 3, kernel_size=1)
        with torch.no_grad():
            self.weight.copy_(torch.eye(3).view(3, 3, 1, 1))
            self.bias = nn.Parameter(sign * rgb_range * torch.tensor(DIV2K_MEAN_RGB))
        self.requires_grad_(False)

    def forward(self, image: Tensor) -> Tensor:
        # In bf16 (8 significant bits) a value near 255 would be off by up to half a grey level.
        with torch.autocast(image.device.type, enabled=False):
            return super().forward(image.float())


class ResidualBlock(nn.Module):
    """conv, ReLU, conv, times `res_scale`, plus the input. No batch normalisation."""

    def __init__(self, n_feats: int, res_scale: float) -> None:
        super().__init__()
        self.body = nn.Sequential(conv3x3(n_feats, n_feats), nn.ReLU(inplace=True), conv3x3(n_feats, n_feats))
        self.res_scale = res_scale

    def forward(self, features: Tensor) -> Tensor:
        residual: Tensor = self.body(features)
        return features + (residual if self.res_scale == 1 else residual * self.res_scale)


def upsampler(scale: int, n_feats: int) -> nn.Sequential:
    """Upsamples by 2 or 3 in one step, by 4 in two steps of 2.

    Each step is a convolution to factor^2 times the channels and a pixel shuffle.
    """
    steps: list[nn.Module] = []
    for factor in {2: (2,), 3: (3,), 4: (2, 2)}[scale]:
        steps += [conv3x3(n_feats, factor**2 * n_feats), nn.PixelShuffle(factor)]
    return nn.Sequential(*steps)


class EDSR(nn.Module):
    """Maps RGB (batch, 3, height, width) to (batch, 3, scale * height, scale * width).

    Values are in 0..rgb_range; outputs are not clamped.
    """

    def __init__(self, *, scale: int, n_resblocks: int, n_feats: int, res_scale: float, rgb_range: float) -> None:
        super().__init__()
        if scale not in (2, 3, 4):
            raise RequestError(f"EDSR does not support scale {scale}: choose 2, 3 or 4")
        if n_resblocks < 1 or n_feats < 1:
            raise RequestError(
                f"EDSR needs at least one residual block and one feature map, not {n_resblocks} and {n_feats}"
            )
        self.scale = scale
        # One pixel per convolution: head, two per block, one after the blocks, first of the tail.
        # The tail's high-resolution convolutions together reach at most one pixel further.
        self.receptive_radius = 2 * n_resblocks + 4
        self.sub_mean = MeanShift(rgb_range, -1)
        self.head = nn.Sequential(conv3x3(3, n_feats))
        blocks = [ResidualBlock(n_feats, res_scale) for _ in range(n_resblocks)]
        self.body = nn.Sequential(*blocks, conv3x3(n_feats, n_feats))
        self.tail = nn.Sequential(upsampler(scale, n_feats), conv3x3(n_feats, 3))
        self.add_mean = MeanShift(rgb_range, 1)

    def forward(self, image: Tensor) -> Tensor:
        features = self.head(self.sub_mean(image))
        shifted: Tensor = self.add_mean(self.tail(features + self.body(features)))
        return shifted


def infer_edsr_options(state: dict[str, Tensor]) -> dict[str, int] | None:
    """Options of `edsr` (scale, n_resblocks, n_feats) that fit a state dict, or None."""
    head, first = state.get("head.0.weight"), state.get("tail.0.0.weight")
    if head is None or first is None or "body.0.body.0.weight" not in state:
        return None
    blocks = sum(name.endswith(".body.0.weight") for name in state)
    scale = 4 if "tail.0.2.weight" in state else {4: 2, 9: 3}.get(len(first) // len(head))
    return None if scale is None else {"scale": scale, "n_resblocks": blocks, "n_feats": len(head)}


@register("edsr", "super-resolution")
def edsr(
    *, scale: int = 2, n_resblocks: int = 32, n_feats: int = 256, res_scale: float = 0.1, rgb_range: float = 255
) -> EDSR:
    """The paper's full model, 40.7 M parameters at x2.

    Residuals are scaled by 0.1, because this width diverges otherwise.
    """
    return EDSR(scale=scale, n_resblocks=n_resblocks, n_feats=n_feats, res_scale=res_scale, rgb_range=rgb_range)


@register("edsr-baseline", "super-resolution")
def edsr_baseline(
    *, scale: int = 2, n_resblocks: int = 16, n_feats: int = 64, res_scale: float = 1, rgb_range: float = 255
) -> EDSR:
    """The paper's small model, 1.37 M parameters at x2."""
    return EDSR(scale=scale, n_resblocks=n_resblocks, n_feats=n_feats, res_scale=res_scale, rgb_range=rgb_range)
