"""Random crops for training, the same for one rank with a batch of 8 as for two ranks with a batch
of 4.

The crops of a step are drawn for all ranks from the seed and the step, without replacement, and
each rank takes its own part. So no two ranks get the same crop in a step, and no state is kept or
exchanged.
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
        """`patch_size`: in low-resolution pixels. Each photo must be at least `scale * patch_size`
        wide and high.
        """
        self.scale, self.patch_size, self.seed = scale, patch_size, seed
        self.hr = [photo.hr for photo in photos]
        self.lr = [photo.lr for photo in photos]
        # Positions of a patch in each photo: (rows, columns). All positions of all photos are
        # equally likely.
        self.places = [(lr.shape[0] - patch_size + 1, lr.shape[1] - patch_size + 1) for lr in self.lr]
        self.ends = np.cumsum([rows * columns for rows, columns in self.places])

    def draw(self, step: int, rank: int, size: int, batch_size: int) -> list[Crop]:
        """This rank's `batch_size` crops of a step. Raises RequestError if the photos have fewer
        than all ranks need.
        """
        needed, available = size * batch_size, int(self.ends[-1])
        if needed > available:
            raise RequestError(
                f"a step needs {needed} different crops, but the photos have only {available}: add photos"
            )
        random = np.random.default_rng([self.seed, step])
        places = random.choice(available, needed, replace=False)
        turns = random.integers(0, 2, (needed, 3), dtype=np.uint8).astype(bool)
        own = slice(rank * batch_size, (rank + 1) * batch_size)
        return [self._crop(int(place), turn) for place, turn in zip(places[own], turns[own], strict=True)]

    def _crop(self, place: int, turn: NDArray[np.bool_]) -> Crop:
        photo = int(np.searchsorted(self.ends, place, side="right"))
        start = int(self.ends[photo - 1]) if photo else 0
        row, column = divmod(place - start, self.places[photo][1])
        return Crop(photo, row, column, *map(bool, turn))

    def cut(self, crops: list[Crop]) -> tuple[Pixels, Pixels]:
        """Low- and high-resolution patches: (batch, 3, patch, patch) and (batch, 3, scale * patch,
        scale * patch).
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
