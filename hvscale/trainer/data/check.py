"""Checks every image of a data set: whether it decodes, matches its partner and is 8-bit RGB."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

from PIL import Image
from PIL.PpmImagePlugin import PpmImageFile
from pydantic import BaseModel, ConfigDict

from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.core.host import available_cores
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.data import resize
from hvscale.trainer.data.classes import class_folders
from hvscale.trainer.data.images import (
    SUFFIXES,
    Pixels,
    UnknownRangeError,
    decode,
    images_in,
    open_image,
    why_unreadable,
)
from hvscale.trainer.data.pairs import MIN_LR_SIDE
from hvscale.trainer.data.sources import ImagePair, layout_of, pairs_of

ProblemKind = Literal["truncated", "missing", "mismatched", "grey", "16-bit", "unknown range", "too small"]
SCALES = (2, 3, 4)
PATCH_SIZE: int = TrainConfig.model_fields["patch_size"].default
# Mean difference, in grey levels, between a low-resolution image and its downscaled partner. Other
# downscaling methods stay below 5 on photos; a different photo is far above.
MAX_DIFFERENCE_LEVELS = 12.0
PNG_BIT_DEPTH_AT = 24
TIFF_BITS_PER_SAMPLE = 258


class Problem(BaseModel):
    file: Path
    kind: ProblemKind
    detail: str


class CheckReport(VersionedDocument):
    model_config = ConfigDict(use_attribute_docstrings=True)

    schema_: Literal["hvscale/data-check/1"] = "hvscale/data-check/1"
    data: str
    images: int
    """Number of images checked."""
    problems: list[Problem]


def check(data: str, patch_size: int | None, done: Callable[[], None]) -> CheckReport:
    """Check DIV2K, a benchmark set, a folder of images or class folders.

    `patch_size`: side of the low-resolution patches for training, in pixels; None: the trainer's
    own. `done` is called after each image or pair. Raises RequestError if there are no images, and
    for a patch size of class folders.
    """
    _, layout, folders = layout_of(data, given=data)
    jobs: list[Callable[[], list[Problem]]] = []
    images = 0
    if layout == "folder" and not images_in(folders[0].hr):
        if patch_size is not None:
            raise RequestError(
                f"--patch-size is for super-resolution, and {data} holds folders of classes: leave it out"
            )
        training, validation = class_folders(data, None, given=data)
        files = [file for classes in (training, validation) if classes is not None for file, _ in classes.samples]
        images = len(files)
        jobs = [partial(_classifier_problems, file) for file in files]
    else:
        for folder in folders:
            for file in images_in(folder.hr):
                images += 1
                jobs.append(partial(_hr_problems, file, patch_size or PATCH_SIZE))
            for scale in SCALES:
                for pair in pairs_of(folder, scale):
                    if pair.lr is not None:
                        images += 1
                        jobs.append(partial(_pair_problems, pair, pair.lr, scale))
    if not images:
        raise RequestError(f"{data}: no images in it ({', '.join(sorted(SUFFIXES))})")
    problems: list[Problem] = []
    with ThreadPoolExecutor(available_cores()) as pool:
        checks = [pool.submit(job) for job in jobs]
        try:
            for one in checks:
                problems += one.result()
                done()
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C the other images are not read
    return CheckReport(data=data, images=images, problems=problems)


def _decoded(file: Path) -> Pixels | Problem:
    try:
        return decode(file)
    except RequestError as error:
        kind: ProblemKind = "unknown range" if isinstance(error.__cause__, UnknownRangeError) else "truncated"
        return Problem(file=file, kind=kind, detail=why_unreadable(error.__cause__))


def _hr_problems(file: Path, patch_size: int) -> list[Problem]:
    pixels = _decoded(file)
    if isinstance(pixels, Problem):
        return [pixels]
    problems = list(_depth_problems(file))
    height, width = pixels.shape[:2]
    side = max(patch_size, MIN_LR_SIDE)
    largest = min(height, width) // side
    if largest < max(SCALES):
        until = f"enough for x{largest}" if largest >= min(SCALES) else "too small for every scale"
        detail = f"{width}x{height}: {until}, with low-resolution images of at least {side}x{side}"
        problems.append(Problem(file=file, kind="too small", detail=detail))
    return problems


def _pair_problems(pair: ImagePair, lr_file: Path, scale: int) -> list[Problem]:
    if not lr_file.is_file():
        return [Problem(file=lr_file, kind="missing", detail=f"the x{scale} image of {pair.hr.name}")]
    lr = _decoded(lr_file)
    if isinstance(lr, Problem):
        return [lr]
    problems = list(_depth_problems(lr_file))
    hr = _decoded(pair.hr)
    if isinstance(hr, Problem):  # reported for the high-resolution image itself
        return problems
    rows, columns = hr.shape[0] // scale, hr.shape[1] // scale
    if not (rows <= lr.shape[0] <= -(-hr.shape[0] // scale) and columns <= lr.shape[1] <= -(-hr.shape[1] // scale)):
        detail = f"{lr.shape[1]}x{lr.shape[0]}: {pair.hr.name} gives {columns}x{rows}"
        return [*problems, Problem(file=lr_file, kind="mismatched", detail=detail)]
    made = resize.shrink(resize.crop_to_multiple(hr, scale), scale)
    difference = abs(made.astype(int) - lr[:rows, :columns]).mean()
    if difference > MAX_DIFFERENCE_LEVELS:
        detail = f"differs from {pair.hr.name} by {difference:.0f} grey levels on average: another photo?"
        problems.append(Problem(file=lr_file, kind="mismatched", detail=detail))
    return problems


def _classifier_problems(file: Path) -> list[Problem]:
    """Only damage counts: ImageNet contains grey photos, and small ones are enlarged."""
    pixels = _decoded(file)
    return [pixels] if isinstance(pixels, Problem) else []


def _depth_problems(file: Path) -> Iterator[Problem]:
    with open_image(file) as image:
        mode = image.mode
        deep = mode.startswith("I") or _bits(file, image) == 16
    if mode in ("1", "L", "LA") or mode.startswith(("I", "F")):
        cut = ", with integers from 0 to 255 in place of its fractions" if mode == "F" else ""
        yield Problem(file=file, kind="grey", detail=f"{mode}: its three channels will be equal{cut}")
    if deep:
        yield Problem(file=file, kind="16-bit", detail="the lower 8 bits of each value will be lost")


def _bits(file: Path, image: Image.Image) -> int:
    """Bits per value in the file. Pillow silently reads 16-bit colour as 8-bit."""
    if image.format == "PNG":
        return file.read_bytes()[PNG_BIT_DEPTH_AT]
    if image.format == "TIFF":
        bits = image.getexif().get(TIFF_BITS_PER_SAMPLE) or 8
        return max(bits) if isinstance(bits, tuple) else int(bits)
    if isinstance(image, PpmImageFile):
        how = image.tile[0].args  # of the decoder; its second part is the value of white if that is not 255
        return 16 if isinstance(how, tuple) and how[1] > 255 else 8
    return 8
