"""Bicubic resizing as in MATLAB's imresize, which produced DIV2K and the benchmark sets.

The cubic kernel (Keys, 1981, a = -0.5) is widened for downscaling (antialiasing) and borders are
mirrored. Rows are resized before columns; 8-bit images are rounded after each of the two passes.
Pillow's bicubic truncates the kernel at the borders instead.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.trainer.data.images import Pixels

KERNEL_WIDTH = 4


def crop_to_multiple(hr: Pixels, scale: int) -> Pixels:
    """Crop the last rows and columns so that `scale` divides height and width."""
    height, width = hr.shape[:2]
    return hr[: height - height % scale, : width - width % scale]


def shrink(hr: Pixels, scale: int) -> Pixels:
    """The low-resolution photo: (height, width, 3) to (height / scale, width / scale, 3)."""
    height, width = hr.shape[:2]
    return imresize(hr, height // scale, width // scale)


def enlarge(lr: Pixels, scale: int) -> Pixels:
    """The bicubic baseline: (height, width, 3) to (height * scale, width * scale, 3)."""
    height, width = lr.shape[:2]
    return imresize(lr, height * scale, width * scale)


def imresize(image: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """Resize (rows, columns, ...) to (height, width, ...). Floats are not rounded."""
    rows = _resize_first_axis(image, height)
    resized: NDArray[Any] = _resize_first_axis(rows.swapaxes(0, 1), width).swapaxes(0, 1)
    return resized


def _resize_first_axis(image: NDArray[Any], length: int) -> NDArray[Any]:
    weights, indices = contributions(image.shape[0], length)
    # The weights of x2 and x4 are sums of powers of two: exact in single precision, ties included.
    precision = np.float32 if image.dtype == np.uint8 else np.float64
    out = np.zeros((length, *image.shape[1:]), precision)
    for weight, index in zip(weights.T.astype(precision), indices.T, strict=True):
        out += weight.reshape(-1, *[1] * (image.ndim - 1)) * image[index]
    if image.dtype == np.uint8:
        # Halves are rounded up, as in MATLAB.
        rounded: Pixels = np.floor(out.clip(0, 255) + precision(0.5)).astype(np.uint8)
        return rounded
    return out


def contributions(old: int, new: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Weights (sum 1) and indices of the `old` positions that each of `new` ones depends on.

    Both have the shape (new, taps).
    """
    scale = new / old
    shrunk = min(scale, 1)
    width = KERNEL_WIDTH / shrunk
    centre = (np.arange(new) + 0.5) / scale - 0.5
    places = np.floor(centre - width / 2).astype(np.intp)[:, None] + 1 + np.arange(int(np.ceil(width)) + 1)
    weights = cubic(shrunk * (centre[:, None] - places))
    weights /= weights.sum(axis=1, keepdims=True)
    mirrored = np.concatenate([np.arange(old), np.arange(old)[::-1]])[places % (2 * old)]
    used = weights.any(axis=0)
    return weights[:, used], mirrored[:, used]


def cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The kernel of Keys (1981), "Cubic convolution interpolation ...", with a = -0.5."""
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x**2 + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x <= 1, near, np.where(x <= 2, far, 0.0))
