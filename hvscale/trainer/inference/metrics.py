"""PSNR and SSIM as super-resolution papers report them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hvscale.trainer.data.images import Pixels

LUMA = np.array([65.738, 129.057, 25.064]) / 256  # ITU-R BT.601 for 8-bit RGB, as MATLAB's rgb2ycbcr has it


@dataclass(frozen=True)
class Measure:
    """What of two images is compared."""

    shave: int
    """Pixels left out at each side of the high-resolution image."""
    luma: bool
    """Luma (Y of YCbCr) alone, or else RGB."""


def div2k_measure(scale: int) -> Measure:
    """RGB, `scale` + 6 pixels shaved: the public EDSR implementation's on DIV2K."""
    return Measure(scale + 6, luma=False)


def benchmark_measure(scale: int) -> Measure:
    """Luma, `scale` pixels shaved: the field's on Set5, Set14, B100 and Urban100."""
    return Measure(scale, luma=True)


def quantise(image: Tensor) -> Pixels:
    """(3, height, width) of any real values to pixels (height, width, 3): clamped to 0..255 and rounded."""
    return np.asarray(image.float().clamp(0, 255).round().byte().permute(1, 2, 0).cpu().numpy())


def psnr_db(ours: Pixels, truth: Pixels, measure: Measure) -> float:
    """Peak signal-to-noise ratio of two images (height, width, 3). Equal: inf."""
    error = np.mean((compared(ours, measure) - compared(truth, measure)) ** 2)
    return 10 * math.log10(255**2 / error) if error else math.inf


def ssim(ours: Pixels, truth: Pixels, measure: Measure) -> float:
    """Structural similarity (Wang et al., 2004): 11x11 Gaussian window, sigma 1.5; of RGB, the mean over the channels."""
    # Imported here, because it brings scipy along and costs every rank half of what torch costs.
    from skimage.metrics import structural_similarity

    wang = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}
    channels = None if measure.luma else -1
    return float(
        structural_similarity(compared(ours, measure), compared(truth, measure), channel_axis=channels, **wang)
    )


def compared(pixels: Pixels, measure: Measure) -> NDArray[Any]:
    """What counts of an image, in double precision: (height, width, 3), or (height, width) of luma, which is not rounded."""
    inner = pixels[measure.shave : -measure.shave or None, measure.shave : -measure.shave or None].astype(np.float64)
    return inner @ LUMA + 16 if measure.luma else inner
