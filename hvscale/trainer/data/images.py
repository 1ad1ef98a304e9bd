"""Reads image files: their pixels or only their size."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hvscale.core.errors import RequestError

Pixels: TypeAlias = NDArray[np.uint8]
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class PixelSource(Protocol):
    """RGB bytes, (height, width, 3), that can be sliced: in memory, mapped from a file, or decoded
    on demand.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, place: Any) -> Pixels: ...


@contextmanager
def opened(file: Path) -> Iterator[Image.Image]:
    """Context: reading the image raises RequestError, naming the file, if it is truncated or not an
    image.
    """
    try:
        with Image.open(file) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # Pillow raises SyntaxError for a broken PNG header, OSError for most else.
        reason = getattr(error, "strerror", None) or "truncated or not an image"
        raise RequestError(f"{file} cannot be decoded ({reason}): replace or remove it") from error


def decode(file: Path) -> Pixels:
    """(height, width, 3). Grey and palette images become RGB; transparency is dropped. Raises
    RequestError, naming the file.
    """
    with opened(file) as image:
        return np.asarray(image.convert("RGB"))


def size_of(file: Path) -> tuple[int, int]:
    """(height, width) from the file's header; does not notice a truncated image. Raises
    RequestError, naming the file.
    """
    with opened(file) as image:
        return image.height, image.width


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder, by name."""
    found = (file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    return sorted(found, key=lambda file: (file.stem, file.suffix))
