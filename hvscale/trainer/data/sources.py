"""Finds the image pairs (high and low resolution) that `--data` names for super-resolution."""

import importlib.util
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hvscale.core.errors import RequestError
from hvscale.core.files import is_folder
from hvscale.trainer.config import BUNDLED
from hvscale.trainer.data.images import SUFFIXES, images_in, reading

DatasetLayout = Literal["bundled", "div2k", "benchmark", "folder"]

# Colour photos inside the installed packages; the packages' own functions would download others.
# motorcycle_right.png is left out, because it shows the same as the left one.
BUNDLED_FILES = {
    "skimage": ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg"),
    "sklearn": ("china.jpg", "flower.jpg"),
}
BUNDLED_FOLDERS = {"skimage": "data", "sklearn": "datasets/images"}
# An installation without a network has photos here in place of a package of 40 MB.
PHOTOS = Path(sys.prefix) / "share" / "hvscale" / "photos"

# As in the public EDSR implementation: 1-800 for training, 801-810 for validation.
DIV2K_TRAINING, DIV2K_VALIDATION = (1, 800), (801, 810)
Range = tuple[int, int]


@dataclass(frozen=True)
class ImagePair:
    name: str
    """File name of the high-resolution image, without suffix."""
    hr: Path
    lr: Path | None
    """None if it must be computed from `hr`."""


@dataclass(frozen=True)
class ImageSet:
    title: str
    layout: DatasetLayout
    pairs: list[ImagePair]


@dataclass(frozen=True)
class ImageFolder:
    """A folder of high-resolution images."""

    hr: Path
    lr_root: Path | None
    """The folder with X2, X3 and X4; it may be missing. None if the layout has no such folder."""


def layout_of(data: str, given: str) -> tuple[str, DatasetLayout, list[ImageFolder]]:
    """Title, layout and image folders of the folder `data`, which errors call `given`.

    Raises RequestError if it is not a readable folder.
    """
    folder = Path(data)
    if not is_folder(folder):
        raise RequestError(f"{given}: no such folder")
    title = folder.name or folder.absolute().name  # of "." the name is empty
    with reading(folder):
        div2k = folder if (folder / "DIV2K_train_HR").is_dir() else folder / "DIV2K"
        if (div2k / "DIV2K_train_HR").is_dir():
            folders = [
                ImageFolder(div2k / f"DIV2K_{subset}_HR", div2k / f"DIV2K_{subset}_LR_bicubic")
                for subset in ("train", "valid")
            ]
            return "DIV2K", "div2k", [each for each in folders if each.hr.is_dir()]
        if (folder / "HR").is_dir():
            return title, "benchmark", [ImageFolder(folder / "HR", folder / "LR_bicubic")]
    return title, "folder", [ImageFolder(folder, None)]


def image_set(data: str, scale: int, option: str = "--data") -> ImageSet:
    """All image pairs of `data`, sorted by name.

    `data` is "bundled" or the folder of DIV2K, a benchmark set (HR, LR_bicubic/X2) or images;
    `option` names it in errors. Raises RequestError if the folder is missing, empty or unreadable,
    or a low-resolution image is missing.
    """
    if data == BUNDLED:
        files = [file for package in BUNDLED_FILES for file in bundled_files(package)]
        pairs = [ImagePair(file.stem, file, None) for file in files]
        return ImageSet("bundled photos", "bundled", sorted(pairs, key=lambda pair: pair.name))
    title, layout, folders = layout_of(data, f"{option} {data}")
    pairs = [pair for folder in folders for pair in pairs_of(folder, scale)]
    if not pairs:
        raise RequestError(f"{option} {data}: no images in it ({', '.join(sorted(SUFFIXES))})")
    for pair in pairs:
        if pair.lr is not None and not pair.lr.is_file():
            raise RequestError(f"{pair.hr} has no low-resolution image {pair.lr}")
    return ImageSet(title, layout, pairs)


def pairs_of(images: ImageFolder, scale: int) -> list[ImagePair]:
    """The image pairs of a folder; `lr` may name a missing file.

    Without a folder for the scale, low resolution is computed from high resolution.
    """
    hr = images_in(images.hr)
    folder = images.lr_root / f"X{scale}" if images.lr_root is not None else None
    with reading(images.hr):
        has_own = folder is not None and folder.is_dir()
    if folder is None or not has_own:
        return [ImagePair(file.stem, file, None) for file in hr]
    lr = {file.stem: file for file in images_in(folder)}
    # DIV2K and most benchmark sets name the scale, 0001x2.png; some repeat the original's name.
    return [
        ImagePair(file.stem, file, lr.get(f"{file.stem}x{scale}") or lr.get(file.stem) or lr_file(folder, file, scale))
        for file in hr
    ]


def lr_file(folder: Path, hr: Path, scale: int) -> Path:
    """The low-resolution image as DIV2K names it: 0001x2.png."""
    return folder / f"{hr.stem}x{scale}.png"


def split(
    found: ImageSet, training: str | None, validation: str | None, holdout: str | None
) -> tuple[ImageSet, ImageSet]:
    """Images for training and for validation.

    The default is the public ranges for DIV2K, otherwise all photos but the last for training. A
    range such as 1-800 counts file numbers (DIV2K) or positions in name order. Raises RequestError
    for empty or overlapping ranges, one range alone of another set than DIV2K, duplicate names, or
    a `holdout` that is unknown or comes with ranges.
    """
    names = [pair.name for pair in found.pairs]
    if duplicates := [name for name, count in Counter(names).items() if count > 1]:
        raise RequestError(f"{found.title} has two photos named {min(duplicates)}: rename one")
    if holdout is not None and holdout not in names:
        raise RequestError(f"no photo named {holdout!r} to hold out; choose from {', '.join(names[:20])}")
    if holdout is not None and (training or validation):
        raise RequestError("--holdout excludes --train-images and --val-images: leave them out")
    if found.layout != "div2k" and (training is None) != (validation is None):
        raise RequestError(f"{found.title} is not DIV2K: give both --train-images and --val-images, or none")
    if holdout is None and (found.layout == "div2k" or training or validation):
        numbers = image_numbers(found)
        chosen_training = parse_range("--train-images", training) or DIV2K_TRAINING
        chosen_validation = parse_range("--val-images", validation) or DIV2K_VALIDATION
        if chosen_training[0] <= chosen_validation[1] and chosen_validation[0] <= chosen_training[1]:
            raise RequestError(
                f"training images {chosen_training[0]}-{chosen_training[1]} and validation images "
                f"{chosen_validation[0]}-{chosen_validation[1]} overlap: choose others with --train-images, --val-images"
            )
        return select_numbers(found, numbers, chosen_training), select_numbers(found, numbers, chosen_validation)
    if len(names) < 2:
        raise RequestError(f"{found.title} has one photo: add another one, because one is held out")
    wanted = names[-1] if holdout is None else holdout
    return (
        ImageSet(found.title, found.layout, [pair for pair in found.pairs if pair.name != wanted]),
        ImageSet(wanted, found.layout, [pair for pair in found.pairs if pair.name == wanted]),
    )


def image_numbers(found: ImageSet) -> list[int]:
    """The file number of each image in DIV2K; otherwise its position in name order, from 1."""
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


def select_numbers(found: ImageSet, numbers: list[int], chosen: Range) -> ImageSet:
    pairs = [pair for pair, number in zip(found.pairs, numbers, strict=True) if chosen[0] <= number <= chosen[1]]
    if not pairs:
        raise RequestError(
            f"{found.title} has no images {chosen[0]}-{chosen[1]}: it has {min(numbers)} to {max(numbers)}"
        )
    return ImageSet(f"{found.title} {chosen[0]}-{chosen[1]}", found.layout, pairs)


def bundled_files(package: str) -> list[Path]:
    """The photos of a package. Raises RequestError if they are not installed."""
    folder = PHOTOS / package
    if not folder.is_dir():
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise RequestError(
                f"the bundled photos need scikit-image and scikit-learn: {sys.executable} -m pip install scikit-image scikit-learn"
            )
        folder = Path(found.origin).parent / BUNDLED_FOLDERS[package]
    return [folder / name for name in BUNDLED_FILES[package]]
