"""Images in class folders, as in ImageNet, and the crops that a classifier sees."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from hvscale.core.errors import RequestError
from hvscale.core.files import is_folder
from hvscale.trainer.data.images import Pixels, is_image_name, open_image, reading, to_rgb

# Inception-style crops (Szegedy et al., 2015), the ranges of torchvision's RandomResizedCrop.
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
CENTRE = 0.875  # fraction of the shorter side: 224 of 256


@dataclass(frozen=True)
class ClassFolder:
    folder: Path
    classes: list[str]
    """Folder names, sorted; a label is an index into this list."""
    samples: list[tuple[Path, int]]
    """Files with their labels, sorted."""

    @property
    def names(self) -> list[str]:
        """Each sample's class and path below it, which do not depend on where the folder is."""
        starts = [len(str(self.folder / name)) for name in self.classes]
        # Not by pathlib, which takes seconds for a million files.
        return [self.classes[label] + str(file)[starts[label] :] for file, label in self.samples]


def class_folders(data: str, val_data: str | None, given: str | None = None) -> tuple[ClassFolder, ClassFolder | None]:
    """Images for training (DATA/train, or DATA) and validation (`val_data`, DATA/val, or None).

    `given` names `data` in errors; default: --data DATA. Raises RequestError if a folder is
    missing, unreadable or has no classes, or if their classes differ.
    """
    root, given = Path(data), given or f"--data {data}"
    if val_data is None and is_folder(root / "val") and not is_folder(root / "train"):
        raise RequestError(f"{given} has a folder val but no folder train: add it")
    training = read_class_folder(root / "train" if is_folder(root / "train") else root, given)
    if val_data is not None:
        validation_root, given = Path(val_data), f"--val-data {val_data}"
    else:
        validation_root, given = root / "val", str(root / "val")
        with reading(root):
            if not validation_root.is_dir():
                return training, None
    validation = read_class_folder(validation_root, given)
    if validation.classes != training.classes:
        odd = min(set(validation.classes) ^ set(training.classes))
        raise RequestError(f"{validation_root} and {data} have different classes: {odd} is only in one of them")
    return training, validation


def read_class_folder(folder: Path, given: str) -> ClassFolder:
    """Raises RequestError, which calls the folder `given`, if it is missing or has no classes."""
    if not is_folder(folder):
        raise RequestError(f"{given}: no such folder")
    with reading(folder):
        # Hidden folders, such as .ipynb_checkpoints, are no classes.
        classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        for name in classes:
            next((folder / name).iterdir(), None)  # because rglob finds nothing in an unreadable folder
    samples = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).rglob("*"))
        if is_image_name(file) and not is_in_hidden(file.relative_to(folder))
    ]
    if not samples:
        raise RequestError(f"{given}: a classifier needs a folder of images for each class")
    return ClassFolder(folder, classes, samples)


def is_in_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parent.parts)


def require_images_of_classes(training: ClassFolder, data: str) -> None:
    """Raises RequestError if there is only one class, or none of the images is of some class."""
    if len(training.classes) == 1:
        raise RequestError(f"--data {data} has one class, {training.classes[0]}: a classifier needs at least two")
    found = {label for _, label in training.samples}
    for label, name in enumerate(training.classes):
        if label not in found:
            raise RequestError(f"--data {data} has no training images of class {name}: add some, or remove its folder")


def training_crop(file: Path, side: int, random: np.random.Generator) -> Pixels:
    """A random crop, possibly mirrored: (side, side, 3).

    Raises RequestError, naming the file, if it cannot be decoded.
    """
    with open_image(file) as image:
        width, height = image.size
        left, top, right, bottom = random_crop_box(width, height, random)
        # A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if that leaves `side` pixels of the crop.
        factor = max(1, min(right - left, bottom - top) // side)
        reduced = image.draft("RGB", (width // factor, height // factor))
        ratio = reduced[1][2] / width if reduced is not None else 1
        box = (left * ratio, top * ratio, right * ratio, bottom * ratio)
        view = to_rgb(image).resize((side, side), Image.Resampling.BILINEAR, box)
    pixels: Pixels = np.asarray(view)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def random_crop_box(width: int, height: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random crop; the centre square if no draw fits."""
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


def validation_crop(file: Path, side: int) -> Pixels:
    """The centre crop, 7/8 of the shorter side: (side, side, 3).

    Raises RequestError, naming the file, if it cannot be decoded.
    """
    with open_image(file) as image:
        part = CENTRE * min(image.width, image.height)
        left, top = (image.width - part) / 2, (image.height - part) / 2
        box = (left, top, left + part, top + part)
        return np.asarray(to_rgb(image).resize((side, side), Image.Resampling.BILINEAR, box))
