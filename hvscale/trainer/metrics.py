"""PSNR as super-resolution papers report it."""

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio

from hvscale.trainer.photos import Pixels


def quantise(image: Tensor) -> Pixels:
    """(1, 3, height, width) of any real values to pixels (height, width, 3): clamped to 0..255 and rounded."""
    return np.asarray(image[0].float().clamp(0, 255).round().byte().permute(1, 2, 0).cpu().numpy())


def psnr_db(ours: Pixels, truth: Pixels, scale: int) -> float:
    """Over RGB, `scale` + 6 pixels shaved from each side: the public EDSR implementation's measure on DIV2K. Equal: inf."""
    shave = scale + 6
    inner = (slice(shave, -shave), slice(shave, -shave))
    a, b = (torch.from_numpy(pixels[inner].astype(np.float64)) for pixels in (ours, truth))
    return float(peak_signal_noise_ratio(a, b, data_range=255.0))
