"""Reads image files: their pixels, or only their size."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular

Pixels: TypeAlias = NDArray[np.uint8]
# Warnings about palettes, damaged metadata and large images would name lines of Pillow, not files.
warnings.filterwarnings("ignore", module=r"PIL\.")
# Formats whose 32-bit integers and floating-point values have no range by themselves: by mode, the
# largest values that can be those of a picture. Below, all would be black, and above, white.
PEAKS = {"I": (256, 65535), "F": (2, 511)}
DEFINED_RANGES = ("PNG", "PPM")  # of integers
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class UnsupportedImageError(ValueError):
    """The values of an intact image would be misread; the message says what to do."""


class UnknownRangeError(UnsupportedImageError):
    """An image does not say which value is white."""


class PixelSource(Protocol):
    """RGB bytes (height, width, 3) that can be sliced.

    They are in memory, mapped from a file, or decoded on demand.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, place: Any) -> Pixels: ...


@contextmanager
def open_image(file: Path) -> Iterator[Image.Image]:
    """Context: the image. Raises RequestError, naming the file, if it cannot be decoded."""
    try:
        with open_regular(file) as stream, Image.open(stream) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if strerror := getattr(error, "strerror", None):  # of opening or reading the file, not of its contents
            raise RequestError(f"{file}: {strerror}") from error
        # Pillow raises SyntaxError for a damaged PNG header, OSError for most other damage.
        raise RequestError(f"{file} cannot be decoded ({why_unreadable(error)}): replace or remove it") from error


def why_unreadable(error: BaseException | None) -> str:
    """Why an image cannot be decoded; `error` is the cause of the RequestError."""
    if isinstance(error, Image.DecompressionBombError):
        return f"more than Pillow's limit of {2 * (Image.MAX_IMAGE_PIXELS or 0)} pixels"
    if isinstance(error, UnsupportedImageError):
        return str(error)
    return getattr(error, "strerror", None) or "truncated or not an image"


def decode(file: Path) -> Pixels:
    """The image as RGB (height, width, 3); transparency is dropped.

    Raises RequestError, naming the file, if it cannot be decoded.
    """
    with open_image(file) as image:
        return np.asarray(to_rgb(image))


def decode_upright(file: Path) -> Pixels:
    """As `decode`, turned as the camera's EXIF orientation says: for images that people look at."""
    with open_image(file) as image:
        ImageOps.exif_transpose(image, in_place=True)
        return np.asarray(to_rgb(image))


def decode_transparency(file: Path) -> Image.Image | None:
    """The image's alpha channel, upright; None for an opaque image. Raises as `decode`."""
    with open_image(file) as image:
        if not image.has_transparency_data:
            return None
        return alpha_of(ImageOps.exif_transpose(image))


def alpha_of(image: Image.Image) -> Image.Image:
    """The alpha channel of an image with transparency.

    Raises UnsupportedImageError for a transparent colour of 16 bits, of which Pillow reads only 8.
    """
    transparent = image.info.get("transparency")
    if image.mode.startswith("I"):  # Pillow's convert would compare it with the upper 8 bits
        return Image.fromarray(np.where(np.asarray(image) == transparent, 0, 255).astype(np.uint8))
    if isinstance(transparent, tuple) and max(transparent) > 255:
        raise UnsupportedImageError(f"its transparent colour {transparent} has 16 bits: convert it to 8 bits")
    return image.convert("RGBA").getchannel("A")


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in 8-bit RGB; of 16-bit values the upper 8 bits are kept.

    Raises UnknownRangeError if the values of 32 bits are neither those of 16 bits nor of 8.
    """
    if image.mode == "F" or (image.mode == "I" and image.format not in DEFINED_RANGES):
        check_range(image)
    if image.mode.startswith("I"):
        # Pillow's convert would make all values above 255 white.
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    return image.convert("RGB")


def check_range(image: Image.Image) -> None:
    """Raises UnknownRangeError for an image that would become black or white."""
    peak, (least, most) = float(np.asarray(image).max()), PEAKS[image.mode]
    if peak and not least <= peak <= most:  # also for NaN, which stands for missing values
        white = 255 if image.mode == "F" else 65535
        raise UnknownRangeError(f"its largest value is {peak:g}, and {white} would be white: convert it to 8 bits")


def image_size(file: Path) -> tuple[int, int]:
    """(height, width) from the file's header; a truncated image is not detected.

    Raises RequestError, naming the file, if the header cannot be read.
    """
    with open_image(file) as image:
        return image.height, image.width


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Context: an OSError, such as a missing permission, becomes a RequestError with its folder."""
    try:
        yield
    except OSError as error:
        raise RequestError(f"{error.filename or folder} cannot be read: {error.strerror}") from error


def is_image_name(file: Path) -> bool:
    """Whether the name is that of an image, and not hidden, such as ._a.png of macOS."""
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name. Raises RequestError if it cannot be read."""
    with reading(folder):
        files = [file for file in folder.iterdir() if is_image_name(file)]
    return sorted(files, key=lambda file: (file.stem, file.suffix))
