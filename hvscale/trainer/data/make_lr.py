"""Makes low-resolution images from a folder of high-resolution ones, named as in DIV2K."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from PIL import Image

from hvscale.core.errors import RequestError
from hvscale.core.files import is_folder
from hvscale.core.host import available_cores
from hvscale.core.run_folder import write_atomically
from hvscale.trainer.data import resize
from hvscale.trainer.data.images import decode, images_in
from hvscale.trainer.data.sources import lr_file


def default_output(hr: Path) -> Path:
    """The folder beside `hr` for its low-resolution images.

    Examples: LR_bicubic for HR, DIV2K_train_LR_bicubic for DIV2K_train_HR, photos_LR_bicubic for
    photos.
    """
    stem = hr.absolute().name
    return hr.absolute().parent / f"{stem.removesuffix('HR').rstrip('_') + '_' if stem != 'HR' else ''}LR_bicubic"


def make_lr(hr: Path, output: Path, scales: list[int], done: Callable[[], None]) -> tuple[int, int]:
    """Write OUTPUT/X2/0001x2.png and so on, on all cores. Existing files are kept.

    Calls `done` after each image. Returns how many images were made and how many were kept. Raises
    RequestError, naming the file, for an image that cannot be decoded or is smaller than the scale,
    for two images of one name, and for a folder that is empty or cannot be written.
    """
    if not is_folder(hr):
        raise RequestError(f"{hr}: no such folder")
    files = images_in(hr)
    if not files:
        raise RequestError(f"{hr}: no images in it")
    name, count = Counter(file.stem for file in files).most_common(1)[0]
    if count > 1:
        raise RequestError(f"{hr} has {count} images named {name}, for one low-resolution image: rename one")
    wanted = [(file, scale, lr_file(output / f"X{scale}", file, scale)) for file in files for scale in scales]
    missing = [each for each in wanted if not each[2].is_file()]
    try:
        for scale in scales:
            (output / f"X{scale}").mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(available_cores()) as pool:
            jobs = [pool.submit(_make, *each) for each in missing]
            try:
                for job in jobs:
                    job.result()
                    done()
            finally:
                pool.shutdown(cancel_futures=True)
    except OSError as error:
        raise RequestError(
            f"cannot write {output}: {error.strerror}. Choose another with --output, or free some space"
        ) from error
    return len(missing), len(wanted) - len(missing)


def _make(hr: Path, scale: int, lr: Path) -> None:
    pixels = resize.crop_to_multiple(decode(hr), scale)
    if 0 in pixels.shape:
        raise RequestError(f"{hr} is smaller than {scale} pixels")
    image = Image.fromarray(resize.shrink(pixels, scale))
    write_atomically(lr, partial(image.save, format="PNG"))
