"""The pixels of image pairs for super-resolution.

High resolution is cropped to a multiple of the scale; low resolution is read or computed from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from hvscale.core.errors import RequestError
from hvscale.trainer.data import resize
from hvscale.trainer.data.cache import DecodedCache, LazyImage, Recipe
from hvscale.trainer.data.images import Pixels, PixelSource, decode, image_size
from hvscale.trainer.data.sources import ImagePair

T = TypeVar("T")
SYNTHETIC_PHOTOS = 4
# Smaller low-resolution photos have too few pixels left for validation after shaving the border.
MIN_LR_SIDE = 16


@dataclass(frozen=True)
class Photo:
    """RGB images (height, width, 3); `hr` is exactly `scale` times as wide and high as `lr`."""

    name: str
    hr: PixelSource
    lr: PixelSource


class NodeRanks(Protocol):
    """The ranks that share this machine's disk: the part of `Ranks` that this module uses."""

    local_rank: int
    local_size: int

    def all_or_fail(self, work: Callable[[], T]) -> T:
        """See `Ranks.all_or_fail`."""
        ...


def names_and_sizes(photos: list[Photo]) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """What identifies each photo, wherever its folder is."""
    return [(photo.name, photo.hr.shape, photo.lr.shape) for photo in photos]


def load_photo(pair: ImagePair, scale: int, min_side: int) -> Photo:
    """The photo in memory. Raises RequestError as `recipes` does, and for a truncated image."""
    hr, lr = recipes(pair, scale, min_side)
    return Photo(pair.name, hr.pixels(), lr.pixels())


def lazy_photo(pair: ImagePair, scale: int, min_side: int) -> Photo:
    """The photo, decoded on each use. Raises RequestError as `recipes` does."""
    return Photo(pair.name, *map(LazyImage, recipes(pair, scale, min_side)))


def cached_photos(
    pairs: list[ImagePair], scale: int, min_side: int, cache: DecodedCache, node: NodeRanks
) -> list[Photo]:
    """Photos mapped from the cache, which the ranks of a node fill together. Collective.

    Photos beyond the cache's limit are decoded on demand. Raises RequestError as `recipes` does,
    and for a truncated image.
    """
    recipes_by_pair = node.all_or_fail(lambda: [recipes(pair, scale, min_side) for pair in pairs])
    wanted = cache.fitting([recipe for both in recipes_by_pair for recipe in both])
    # Also without images to cache: other ranks, whose --cache-gb may differ, may have some.
    node.all_or_fail(lambda: cache.make_room(wanted) if wanted and node.local_rank == 0 else None)
    node.all_or_fail(lambda: cache.fill(wanted[node.local_rank :: node.local_size]))
    in_cache = set(map(id, wanted))

    def open_pixels(recipe: Recipe) -> PixelSource:
        return cache.open(recipe) if id(recipe) in in_cache else LazyImage(recipe)

    return [Photo(pair.name, *map(open_pixels, both)) for pair, both in zip(pairs, recipes_by_pair, strict=True)]


def recipes(pair: ImagePair, scale: int, min_side: int) -> tuple[Recipe, Recipe]:
    """How to decode the high- and the low-resolution image. Reads only headers.

    Raises RequestError, naming the file, if it is not an image, is smaller than `min_side` pixels,
    or does not match its partner's size.
    """
    height, width = image_size(pair.hr)
    if min(height, width) < min_side:
        raise RequestError(f"{pair.hr} is {width}x{height}: it must have at least {min_side}x{min_side} pixels")
    rows, columns = height // scale, width // scale
    if pair.lr is not None:
        found_rows, found_columns = image_size(pair.lr)
        # If the scale does not divide HR's size, some data sets round LR's size up, others down.
        if (found_rows, found_columns) not in {(rows, columns), (-(-height // scale), -(-width // scale))}:
            raise RequestError(
                f"{pair.lr} is {found_columns}x{found_rows} and {pair.hr} {width}x{height}: "
                f"at scale {scale} {columns}x{rows} was expected"
            )

    def hr() -> Pixels:
        return decode(pair.hr)[: rows * scale, : columns * scale]

    def lr() -> Pixels:
        return resize.shrink(hr(), scale) if pair.lr is None else decode(pair.lr)[:rows, :columns]

    lr_file: Path = pair.hr if pair.lr is None else pair.lr
    return (
        Recipe(pair.hr, f"hr x{scale}", (rows * scale, columns * scale, 3), hr),
        Recipe(lr_file, f"lr x{scale} {'made' if pair.lr is None else 'read'}", (rows, columns, 3), lr),
    )


def synthetic_photos(scale: int, min_side: int, seed: int) -> list[Photo]:
    """Photos of RGB noise, the same on every rank, for measuring speed without a data set."""
    side = scale * max(256 // scale, -(-min_side // scale))
    photos = []
    for number in range(SYNTHETIC_PHOTOS):
        hr = np.random.default_rng(seed + number).integers(0, 256, (side, side, 3), dtype=np.uint8)
        photos.append(Photo(f"noise-{number}", hr, resize.shrink(hr, scale)))
    return photos
