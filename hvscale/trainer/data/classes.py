"""Images in class folders, as in ImageNet, and the views a classifier gets of them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from hvscale.core.errors import RequestError
from hvscale.trainer.data.images import SUFFIXES, Pixels, opened

# Inception-style crops (Szegedy et al., 2015), the ranges of torchvision's RandomResizedCrop.
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
CENTRE = 0.875  # of the shorter side: 224 of 256


@dataclass(frozen=True)
class ClassFolder:
    classes: list[str]
    """Names of the folders, sorted; a label is an index into this list."""
    samples: list[tuple[Path, int]]
    """File and label, sorted."""


def class_folders(data: str, val_data: str | None) -> tuple[ClassFolder, ClassFolder | None]:
    """Images for training (DATA/train if it exists, else DATA) and validation (`val_data`, DATA/val
    or none).

    Raises RequestError if a folder is missing or has no classes, or if the two differ in classes.
    """
    root = Path(data)
    training = read(root / "train" if (root / "train").is_dir() else root, data)
    if val_data is None and not (root / "val").is_dir():
        return training, None
    validation_root = Path(val_data) if val_data is not None else root / "val"
    validation = read(validation_root, str(validation_root))
    if validation.classes != training.classes:
        odd = min(set(validation.classes) ^ set(training.classes))
        raise RequestError(f"{validation_root} and {data} have different classes: {odd} is only in one of them")
    return training, validation


def read(folder: Path, named: str) -> ClassFolder:
    if not folder.is_dir():
        raise RequestError(f"--data {named}: no such folder")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    samples = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).rglob("*"))
        if file.suffix.lower() in SUFFIXES
    ]
    if not samples:
        raise RequestError(f"--data {named}: a classifier needs a folder for each class with images in it")
    return ClassFolder(classes, samples)


def training_view(file: Path, side: int, random: np.random.Generator) -> Pixels:
    """A random crop, possibly mirrored, as (side, side, 3). Raises RequestError, naming the
    file.
    """
    with opened(file) as image:
        image.draft(
            "RGB", (side, side)
        )  # decodes a JPEG at a half, a quarter or an eighth of its size if that is enough
        box = random_box(image.width, image.height, random)
        view = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, box)
    pixels: Pixels = np.asarray(view)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def random_box(width: int, height: int, random: np.random.Generator) -> tuple[float, float, float, float]:
    """Left, top, right, bottom; the centre square if no draw fits."""
    for _ in range(TRIES):
        area = width * height * random.uniform(*AREA)
        aspect = np.exp(random.uniform(np.log(ASPECT[0]), np.log(ASPECT[1])))
        wide, high = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(random.integers(0, width - wide + 1)), int(random.integers(0, height - high + 1))
            return left, top, left + wide, top + high
    short = min(width, height)
    left, top = (width - short) // 2, (height - short) // 2
    return left, top, left + short, top + short


def validation_view(file: Path, side: int) -> Pixels:
    """The centre crop, 7/8 of the shorter side, as (side, side, 3). Raises RequestError, naming the
    file.
    """
    with opened(file) as image:
        part = CENTRE * min(image.width, image.height)
        left, top = (image.width - part) / 2, (image.height - part) / 2
        box = (left, top, left + part, top + part)
        return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, box))
