"""PSNR and SSIM as super-resolution papers report them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvscale.trainer.data.images import Pixels

LUMA = np.array([65.738, 129.057, 25.064]) / 256  # ITU-R BT.601 for 8-bit RGB, as in MATLAB's rgb2ycbcr


@dataclass(frozen=True)
class Measure:
    """Which part of two images is compared."""

    shave: int
    """Pixels shaved off each side of the high-resolution image."""
    luma: bool
    """Compare luma (Y of YCbCr) instead of RGB."""


def div2k_measure(scale: int) -> Measure:
    """RGB with `scale` + 6 pixels shaved, as in the public EDSR code for DIV2K."""
    return Measure(scale + 6, luma=False)


def benchmark_measure(scale: int) -> Measure:
    """Luma with `scale` pixels shaved, the convention for Set5, Set14, B100 and Urban100."""
    return Measure(scale, luma=True)


def to_pixels(image: Tensor) -> Pixels:
    """Clamp (3, height, width) to 0..255 and round it to pixels (height, width, 3)."""
    pixels = torch.empty((*image.shape[1:], len(image)), dtype=torch.uint8)
    for number, channel in enumerate(image):  # one at a time, because a large image's floats take gigabytes
        pixels[:, :, number] = channel.float().clamp(0, 255).round_()
    return pixels.numpy()


def psnr_db(ours: Pixels, truth: Pixels, measure: Measure) -> float:
    """Peak signal-to-noise ratio of two images (height, width, 3) in dB; infinite if equal."""
    error = np.mean((compared_values(ours, measure) - compared_values(truth, measure)) ** 2)
    return 10 * math.log10(255**2 / error) if error else math.inf


def ssim(ours: Pixels, truth: Pixels, measure: Measure) -> float:
    """Structural similarity (Wang et al., 2004); of RGB, the mean over the channels.

    The window is an 11x11 Gaussian with sigma 1.5.
    """
    # Imported here: it loads scipy, which takes half as long as torch.
    from skimage.metrics import structural_similarity

    wang = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}
    channels = None if measure.luma else -1
    return float(
        structural_similarity(
            compared_values(ours, measure), compared_values(truth, measure), channel_axis=channels, **wang
        )
    )


def compared_values(pixels: Pixels, measure: Measure) -> NDArray[Any]:
    """The compared part of an image in fp64: (height, width, 3), or luma (height, width)."""
    inner = pixels[measure.shave : -measure.shave or None, measure.shave : -measure.shave or None].astype(np.float64)
    return inner @ LUMA + 16 if measure.luma else inner
