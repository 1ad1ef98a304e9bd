"""Photos to train on: the bundled set, or a folder of images."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hvscale.errors import RequestError
from hvscale.trainer.config import BUNDLED

Pixels: TypeAlias = NDArray[np.uint8]
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}

# Real colour photos that lie inside the installed packages; the packages' own functions would download others.
# The right-hand picture of the motorcycle pair is left out: it shows what the left one shows.
BUNDLED_FILES = {
    "skimage": ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg"),
    "sklearn": ("china.jpg", "flower.jpg"),
}
BUNDLED_FOLDERS = {"skimage": "data", "sklearn": "datasets/images"}


@dataclass(frozen=True)
class Photo:
    name: str
    """File name without suffix."""
    pixels: Pixels
    """RGB, (height, width, 3)."""


def load_photos(source: str, holdout: str | None, smallest: int) -> tuple[list[Photo], Photo]:
    """The photos to train on, in the order of their names, and the one held out (the last when `holdout` is None).

    `smallest`: width and height that every photo needs, in pixels. All are decoded into memory here.
    Raises RequestError for a folder that is missing or empty, and naming the file that is cut short, not an image or
    too small.
    """
    photos = sorted((decode(file, smallest) for file in photo_files(source)), key=lambda photo: photo.name)
    names = [photo.name for photo in photos]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RequestError(f"{source} has two photos named {min(twice)}: rename one")
    if len(photos) < 2:
        raise RequestError(f"{source} has one photo: one more is needed, because one is held out")
    wanted = names[-1] if holdout is None else holdout
    if wanted not in names:
        raise RequestError(f"no photo named {wanted!r} to hold out: there are {', '.join(names[:20])}")
    held_out = photos.pop(names.index(wanted))
    return photos, held_out


def photo_files(source: str) -> list[Path]:
    """Raises RequestError when there is no image."""
    if source == BUNDLED:
        return [file for package in BUNDLED_FILES for file in bundled_files(package)]
    folder = Path(source)
    if not folder.is_dir():
        raise RequestError(f"--photos {source}: no such folder")
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise RequestError(f"--photos {source}: no images in it ({', '.join(sorted(SUFFIXES))})")
    return files


def bundled_files(package: str) -> list[Path]:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise RequestError("the bundled photos come with scikit-image and scikit-learn: pip install 'hvscale[photos]'")
    return [Path(found.origin).parent / BUNDLED_FOLDERS[package] / name for name in BUNDLED_FILES[package]]


def decode(file: Path, smallest: int) -> Photo:
    """Grey and palette images become RGB; transparency is dropped."""
    try:
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # Pillow raises SyntaxError for a broken PNG header, OSError for most else.
        reason = getattr(error, "strerror", None) or "cut short, or not an image"
        raise RequestError(f"{file} cannot be decoded ({reason}): replace it or take it away") from error
    height, width = pixels.shape[:2]
    if min(height, width) < smallest:
        raise RequestError(f"{file} is {width}x{height}: at least {smallest}x{smallest} pixels are needed")
    return Photo(file.stem, pixels)
