"""Finds the images for super-resolution that `--data` names: high-resolution files and their
low-resolution partners.
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hvscale.core.errors import RequestError
from hvscale.trainer.config import BUNDLED
from hvscale.trainer.data.images import SUFFIXES, images_in

Layout = Literal["bundled", "div2k", "benchmark", "folder"]

# Colour photos that are part of the installed packages; the packages' own functions would download
# others. The right-hand photo of the motorcycle pair is left out: it shows the same as the left
# one.
BUNDLED_FILES = {
    "skimage": ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg"),
    "sklearn": ("china.jpg", "flower.jpg"),
}
BUNDLED_FOLDERS = {"skimage": "data", "sklearn": "datasets/images"}

# As in the public EDSR implementation: 1-800 for training, 801-810 for validation.
DIV2K_TRAINING, DIV2K_VALIDATION = (1, 800), (801, 810)
Range = tuple[int, int]


@dataclass(frozen=True)
class ImagePair:
    name: str
    """File name of the high-resolution image, without suffix."""
    hr: Path
    lr: Path | None
    """None if it is to be made from `hr`."""


@dataclass(frozen=True)
class ImageSet:
    title: str
    layout: Layout
    pairs: list[ImagePair]


@dataclass(frozen=True)
class Part:
    """A folder of high-resolution images."""

    hr: Path
    lr_root: Path | None
    """Folder of X2, X3 and X4, which may not exist; None if the layout has none."""


def layout_of(data: str) -> tuple[str, Layout, list[Part]]:
    """Title, layout and folders of what `--data` names. Raises RequestError if it is not a
    folder.
    """
    folder = Path(data)
    if not folder.is_dir():
        raise RequestError(f"--data {data}: no such folder")
    div2k = folder if (folder / "DIV2K_train_HR").is_dir() else folder / "DIV2K"
    if (div2k / "DIV2K_train_HR").is_dir():
        parts = [Part(div2k / f"DIV2K_{part}_HR", div2k / f"DIV2K_{part}_LR_bicubic") for part in ("train", "valid")]
        return "DIV2K", "div2k", [part for part in parts if part.hr.is_dir()]
    if (folder / "HR").is_dir():
        return folder.name, "benchmark", [Part(folder / "HR", folder / "LR_bicubic")]
    return folder.name, "folder", [Part(folder, None)]


def image_set(data: str, scale: int) -> ImageSet:
    """All pairs of `data`, sorted by name: "bundled", DIV2K, a benchmark set (HR, LR_bicubic/X2) or
    a folder of images.

    Raises RequestError if the folder is missing or empty, or a low-resolution image is missing.
    """
    if data == BUNDLED:
        files = [file for package in BUNDLED_FILES for file in bundled_files(package)]
        pairs = [ImagePair(file.stem, file, None) for file in files]
        return ImageSet("bundled photos", "bundled", sorted(pairs, key=lambda pair: pair.name))
    title, layout, parts = layout_of(data)
    pairs = [pair for part in parts for pair in pairs_of(part, scale)]
    if not pairs:
        raise RequestError(f"--data {data}: no images in it ({', '.join(sorted(SUFFIXES))})")
    for pair in pairs:
        if pair.lr is not None and not pair.lr.is_file():
            raise RequestError(f"{pair.hr} has no low-resolution image {pair.lr}")
    return ImageSet(title, layout, pairs)


def pairs_of(part: Part, scale: int) -> list[ImagePair]:
    """Without a folder for the scale, low resolution is made from high; otherwise `lr` may name a
    missing file.
    """
    hr = images_in(part.hr)
    folder = part.lr_root / f"X{scale}" if part.lr_root is not None else None
    if folder is None or not folder.is_dir():
        return [ImagePair(file.stem, file, None) for file in hr]
    lr = {file.stem: file for file in images_in(folder)}
    # DIV2K and most benchmark sets name the scale, 0001x2.png; some repeat the original's name.
    return [
        ImagePair(file.stem, file, lr.get(f"{file.stem}x{scale}") or lr.get(file.stem) or lr_file(folder, file, scale))
        for file in hr
    ]


def lr_file(folder: Path, hr: Path, scale: int) -> Path:
    """DIV2K's name of the low-resolution image: 0001x2.png."""
    return folder / f"{hr.stem}x{scale}.png"


def split(
    found: ImageSet, training: str | None, validation: str | None, holdout: str | None
) -> tuple[ImageSet, ImageSet]:
    """Images for training and for validation. Default: the public ranges for DIV2K, else all but
    one photo.

    A range such as 1-800 is of file numbers (DIV2K) or positions in name order. Raises RequestError
    for an empty or overlapping choice, two photos of the same name, or an unknown `holdout`.
    """
    names = [pair.name for pair in found.pairs]
    if twice := {name for name in names if names.count(name) > 1} if len(names) < 10_000 else set():
        raise RequestError(f"{found.title} has two photos named {min(twice)}: rename one")
    if holdout is not None and holdout not in names:
        raise RequestError(f"no photo named {holdout!r} to hold out; choose from {', '.join(names[:20])}")
    if holdout is None and (found.layout == "div2k" or training or validation):
        numbers = numbered(found)
        chosen_training = parse_range("--train-images", training) or DIV2K_TRAINING
        chosen_validation = parse_range("--val-images", validation) or DIV2K_VALIDATION
        if chosen_training[0] <= chosen_validation[1] and chosen_validation[0] <= chosen_training[1]:
            raise RequestError(
                f"training images {chosen_training[0]}-{chosen_training[1]} and validation images "
                f"{chosen_validation[0]}-{chosen_validation[1]} overlap: choose others with --train-images, --val-images"
            )
        return part(found, numbers, chosen_training), part(found, numbers, chosen_validation)
    if len(names) < 2:
        raise RequestError(f"{found.title} has one photo: add another one, because one is held out")
    wanted = names[-1] if holdout is None else holdout
    return (
        ImageSet(found.title, found.layout, [pair for pair in found.pairs if pair.name != wanted]),
        ImageSet(wanted, found.layout, [pair for pair in found.pairs if pair.name == wanted]),
    )


def numbered(found: ImageSet) -> list[int]:
    """DIV2K's number of each image; elsewhere its position in name order, from 1."""
    if found.layout != "div2k":
        return list(range(1, len(found.pairs) + 1))
    return [int(re.sub(r"\D", "", pair.name) or 0) for pair in found.pairs]


def parse_range(option: str, text: str | None) -> Range | None:
    """Read a range such as 1-800, or 7 for one image. Raises RequestError for anything else."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise RequestError(f"{option} {text}: not a range of image numbers; example: 1-800")
    return first, last


def part(found: ImageSet, numbers: list[int], chosen: Range) -> ImageSet:
    pairs = [pair for pair, number in zip(found.pairs, numbers, strict=True) if chosen[0] <= number <= chosen[1]]
    if not pairs:
        raise RequestError(
            f"{found.title} has no images {chosen[0]}-{chosen[1]}: it has {min(numbers)} to {max(numbers)}"
        )
    return ImageSet(f"{found.title} {chosen[0]}-{chosen[1]}", found.layout, pairs)


def bundled_files(package: str) -> list[Path]:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise RequestError("the bundled photos need scikit-image and scikit-learn: pip install 'hvscale[photos]'")
    return [Path(found.origin).parent / BUNDLED_FOLDERS[package] / name for name in BUNDLED_FILES[package]]
