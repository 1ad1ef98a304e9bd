"""Random crops for training; two ranks with a batch of 4 get the same ones as one with 8.

Each rank draws the crops of all ranks from the seed and the step, without replacement, and takes
its own part. So no two ranks get the same crop in a step, and no state is stored or exchanged.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.trainer.data.images import Pixels, PixelSource
from hvscale.trainer.data.pairs import Photo


@dataclass(frozen=True)
class Crop:
    """A position on the low-resolution grid, and how the patch is flipped."""

    photo: int
    row: int
    column: int
    flip_vertical: bool
    flip_horizontal: bool
    transpose: bool


class Crops:
    def __init__(self, photos: list[Photo], scale: int, patch_size: int, seed: int) -> None:
        """`patch_size`: in low-resolution pixels.

        Each photo must be at least `scale * patch_size` wide and high.
        """
        self.scale, self.patch_size, self.seed = scale, patch_size, seed
        self.hr = [photo.hr for photo in photos]
        self.lr = [photo.lr for photo in photos]
        # Number of patch positions in each photo: (rows, columns). All are equally likely.
        self.positions = [(lr.shape[0] - patch_size + 1, lr.shape[1] - patch_size + 1) for lr in self.lr]
        self.ends = np.cumsum([rows * columns for rows, columns in self.positions])

    def draw(self, step: int, rank: int, size: int, batch_size: int) -> list[Crop]:
        """This rank's `batch_size` crops of a step.

        Raises RequestError if the photos have fewer positions than all ranks need.
        """
        needed, available = size * batch_size, int(self.ends[-1])
        if needed > available:
            raise RequestError(
                f"a step needs {needed} different crops, but the photos have only {available}: add photos"
            )
        random = np.random.default_rng([self.seed, step])
        positions = random.choice(available, needed, replace=False)
        all_flips = random.integers(0, 2, (needed, 3), dtype=np.uint8).astype(bool)
        own = slice(rank * batch_size, (rank + 1) * batch_size)
        return [
            self._crop(int(position), flips) for position, flips in zip(positions[own], all_flips[own], strict=True)
        ]

    def _crop(self, position: int, flips: NDArray[np.bool_]) -> Crop:
        photo = int(np.searchsorted(self.ends, position, side="right"))
        start = int(self.ends[photo - 1]) if photo else 0
        row, column = divmod(position - start, self.positions[photo][1])
        return Crop(photo, row, column, *map(bool, flips))

    def cut(self, crops: list[Crop]) -> tuple[Pixels, Pixels]:
        """Low- and high-resolution patches.

        Shapes: (batch, 3, patch, patch) and (batch, 3, scale * patch, scale * patch).
        """
        lr = [self._cut(self.lr, crop, 1) for crop in crops]
        hr = [self._cut(self.hr, crop, self.scale) for crop in crops]
        return np.stack(lr), np.stack(hr)

    def _cut(self, photos: list[PixelSource], crop: Crop, factor: int) -> Pixels:
        side = factor * self.patch_size
        rows = slice(factor * crop.row, factor * crop.row + side)
        columns = slice(factor * crop.column, factor * crop.column + side)
        patch = photos[crop.photo][rows, columns]
        if crop.flip_vertical:
            patch = patch[::-1]
        if crop.flip_horizontal:
            patch = patch[:, ::-1]
        if crop.transpose:
            patch = patch.transpose(1, 0, 2)
        return patch.transpose(2, 0, 1)
