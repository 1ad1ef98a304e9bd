"""Synthetic images, for measuring speed without a data set."""

import numpy as np

from hvscale.trainer.data import resize
from hvscale.trainer.data.images import Pixels
from hvscale.trainer.data.pairs import Photo

PHOTOS = 4


def noise(height: int, width: int, seed: int) -> Pixels:
    """RGB noise, (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def photos(scale: int, smallest: int, seed: int) -> list[Photo]:
    """The same on every rank."""
    side = scale * max(256 // scale, -(-smallest // scale))
    made = [noise(side, side, seed + number) for number in range(PHOTOS)]
    return [Photo(f"noise-{number}", hr, resize.shrink(hr, scale)) for number, hr in enumerate(made)]
