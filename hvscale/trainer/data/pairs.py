"""The pixels of image pairs: high resolution, cropped to a multiple of the scale, and low
resolution, read or made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from hvscale.core.errors import RequestError
from hvscale.trainer.data import resize
from hvscale.trainer.data.cache import DecodedCache, OnDemand, Recipe
from hvscale.trainer.data.images import PixelSource, decode, size_of
from hvscale.trainer.data.sources import ImagePair

T = TypeVar("T")


@dataclass(frozen=True)
class Photo:
    """`hr` is exactly scale times as wide and high as `lr`; both RGB, (height, width, 3)."""

    name: str
    hr: PixelSource
    lr: PixelSource


class Node(Protocol):
    """The ranks that share this machine's disk, as `hvscale.trainer.ranks.Ranks` has them."""

    local_rank: int
    local_size: int

    def all_or_fail(self, work: Callable[[], T]) -> T:
        """As `Ranks.all_or_fail`."""
        ...


def in_memory(pair: ImagePair, scale: int, smallest: int) -> Photo:
    """Raises RequestError as `recipes` does, and for a truncated image."""
    hr, lr = recipes(pair, scale, smallest)
    return Photo(pair.name, hr.make(), lr.make())


def on_demand(pair: ImagePair, scale: int, smallest: int) -> Photo:
    """Decoded when used. Raises RequestError as `recipes` does."""
    return Photo(pair.name, *map(OnDemand, recipes(pair, scale, smallest)))


def mapped(pairs: list[ImagePair], scale: int, smallest: int, cache: DecodedCache, node: Node) -> list[Photo]:
    """Photos mapped from the cache, which the ranks of a node fill together; beyond its limit, on
    demand.

    Collective. Raises RequestError as `recipes` does, and for a truncated image.
    """
    each = node.all_or_fail(lambda: [recipes(pair, scale, smallest) for pair in pairs])
    wanted = cache.fitting([recipe for both in each for recipe in both])
    if wanted:
        node.all_or_fail(lambda: cache.make_room(wanted) if node.local_rank == 0 else None)
        node.all_or_fail(lambda: cache.fill(wanted[node.local_rank :: node.local_size]))
    held = set(map(id, wanted))

    def opened(recipe: Recipe) -> PixelSource:
        return cache.open(recipe) if id(recipe) in held else OnDemand(recipe)

    return [Photo(pair.name, *map(opened, both)) for pair, both in zip(pairs, each, strict=True)]


def recipes(pair: ImagePair, scale: int, smallest: int) -> tuple[Recipe, Recipe]:
    """How to make the high- and the low-resolution image; reads only headers.

    Raises RequestError, naming the file, if it is not an image, is smaller than `smallest` pixels,
    or does not match its partner's size.
    """
    height, width = size_of(pair.hr)
    if min(height, width) < smallest:
        raise RequestError(f"{pair.hr} is {width}x{height}: it must have at least {smallest}x{smallest} pixels")
    rows, columns = height // scale, width // scale
    if pair.lr is not None:
        found_rows, found_columns = size_of(pair.lr)
        # Some sets keep the last rows and columns of HR that the scale does not divide, some do
        # not.
        if (found_rows, found_columns) not in {(rows, columns), (-(-height // scale), -(-width // scale))}:
            raise RequestError(
                f"{pair.lr} is {found_columns}x{found_rows} and {pair.hr} {width}x{height}: "
                f"at scale {scale} {columns}x{rows} was expected"
            )

    def hr() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return decode(pair.hr)[: rows * scale, : columns * scale]

    def lr() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return resize.shrink(hr(), scale) if pair.lr is None else decode(pair.lr)[:rows, :columns]

    lr_file: Path = pair.hr if pair.lr is None else pair.lr
    return (
        Recipe(pair.hr, f"hr x{scale}", (rows * scale, columns * scale, 3), hr),
        Recipe(lr_file, f"lr x{scale} {'made' if pair.lr is None else 'read'}", (rows, columns, 3), lr),
    )
