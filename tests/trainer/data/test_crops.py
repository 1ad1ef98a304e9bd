"""Crops: independent of the number of ranks, distinct in a step, LR and HR at the same position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.trainer.data import resize
from hvscale.trainer.data.crops import Crops
from hvscale.trainer.data.images import Pixels
from hvscale.trainer.data.pairs import Photo


def photo(name: str, pixels: Pixels, scale: int = 2) -> Photo:
    hr = resize.crop_to_multiple(pixels, scale)
    return Photo(name, hr, resize.shrink(hr, scale))


def make_crops(scale: int = 2, patch_size: int = 6, seed: int = 1) -> Crops:
    random = np.random.default_rng(7)
    sizes = [(33, 41), (24, 30)]
    photos = [photo(str(size), random.integers(0, 256, (*size, 3), dtype=np.uint8), scale) for size in sizes]
    return Crops(photos, scale, patch_size, seed)


arrangements = st.fixed_dictionaries(
    {"step": st.integers(0, 10**6), "size": st.integers(1, 8), "batch_size": st.integers(1, 8)}
)


@given(arrangements)
def test_crops_of_a_step_are_distinct(arrangement: dict[str, int]) -> None:
    crops = make_crops()
    drawn = [crop for rank in range(arrangement["size"]) for crop in crops.draw(rank=rank, **arrangement)]
    assert len({(crop.photo, crop.row, crop.column) for crop in drawn}) == len(drawn)


@given(
    step=st.integers(0, 10**6),
    seed=st.integers(0, 10**6),
    arrangement=st.sampled_from([(1, 12), (2, 6), (3, 4), (12, 1)]),
)
def test_joint_batch_does_not_depend_on_the_number_of_ranks(step: int, seed: int, arrangement: tuple[int, int]) -> None:
    crops = make_crops(seed=seed)
    size, batch_size = arrangement
    assert [crop for rank in range(size) for crop in crops.draw(step, rank, size, batch_size)] == crops.draw(
        step, 0, 1, 12
    )


@given(step=st.integers(0, 10**6), scale=st.sampled_from([2, 3, 4]))
def test_crops_lie_inside_their_photos(step: int, scale: int) -> None:
    crops = make_crops(scale)
    lr, hr = crops.cut(crops.draw(step, 0, 1, 5))
    assert (lr.shape, hr.shape) == ((5, 3, 6, 6), (5, 3, 6 * scale, 6 * scale))


def test_steps_and_seeds_differ() -> None:
    assert make_crops().draw(0, 0, 1, 8) != make_crops().draw(1, 0, 1, 8)
    assert make_crops().draw(0, 0, 1, 8) != make_crops(seed=2).draw(0, 0, 1, 8)


def test_low_and_high_resolution_are_the_same_crop() -> None:
    """On a smooth photo, downscaling the HR patch gives about the LR patch."""
    rows, columns = np.mgrid[0:64, 0:80]
    smooth = np.stack([rows * 3, columns * 3, rows + columns], axis=2).astype(np.uint8)
    crops = Crops([photo("smooth", smooth)], 2, 8, 1)
    lr, hr = crops.cut(crops.draw(0, 0, 1, 32))
    for low, high in zip(lr, hr, strict=True):
        shrunk = resize.shrink(np.ascontiguousarray(high.transpose(1, 2, 0)), 2).transpose(2, 0, 1)
        difference = np.abs(shrunk.astype(int) - low)[:, 2:-2, 2:-2]  # the border has other neighbours
        assert difference.max() <= 1


def test_all_flips_occur() -> None:
    drawn = make_crops().draw(0, 0, 1, 100)
    assert len({(crop.flip_vertical, crop.flip_horizontal, crop.transpose) for crop in drawn}) == 8


def test_photos_with_too_few_positions() -> None:
    tiny = photo("tiny", np.zeros((14, 12, 3), dtype=np.uint8))
    with pytest.raises(RequestError, match="a step needs 4 different crops, but the photos have only 2"):
        Crops([tiny], 2, 6, 1).draw(0, 0, 2, 2)
