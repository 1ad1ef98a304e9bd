"""Bicubic resizing, by Pillow: its bicubic widens the kernel when it shrinks (antialiasing), as MATLAB's imresize does.

Pillow rounds after each of its two passes, so pixels may differ by a level from MATLAB's.
"""

import numpy as np
from PIL import Image

from hvscale.trainer.photos import Pixels


def crop_to_multiple(hr: Pixels, scale: int) -> Pixels:
    """Leave out the last rows and columns, so that height and width can be divided by `scale`."""
    height, width = hr.shape[:2]
    return hr[: height - height % scale, : width - width % scale]


def shrink(hr: Pixels, scale: int) -> Pixels:
    """The low-resolution photo: (height, width, 3) to (height / scale, width / scale, 3)."""
    height, width = hr.shape[:2]
    return _resize(hr, width // scale, height // scale)


def enlarge(lr: Pixels, scale: int) -> Pixels:
    """The baseline that super-resolution has to beat: (height, width, 3) to (height * scale, width * scale, 3)."""
    height, width = lr.shape[:2]
    return _resize(lr, width * scale, height * scale)


def _resize(pixels: Pixels, width: int, height: int) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
