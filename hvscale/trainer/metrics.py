"""PSNR as super-resolution papers report it."""

import math

import numpy as np
from torch import Tensor

from hvscale.trainer.photos import Pixels


def quantise(image: Tensor) -> Pixels:
    """(1, 3, height, width) of any real values to pixels (height, width, 3): clamped to 0..255 and rounded."""
    return np.asarray(image[0].float().clamp(0, 255).round().byte().permute(1, 2, 0).cpu().numpy())


def psnr_db(ours: Pixels, truth: Pixels, scale: int) -> float:
    """Over RGB, `scale` + 6 pixels shaved from each side: the public EDSR implementation's measure on DIV2K. Equal: inf."""
    # Not torchmetrics' function, whose import brings scipy along and costs every rank half of what torch costs.
    shave = scale + 6
    inner = (slice(shave, -shave), slice(shave, -shave))
    error = np.mean((ours[inner].astype(np.float64) - truth[inner]) ** 2)
    return 10 * math.log10(255**2 / error) if error else math.inf
