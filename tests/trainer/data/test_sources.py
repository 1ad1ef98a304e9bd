"""Images that --data names (bundled, DIV2K, benchmark sets, folders), and errors in one line."""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hvscale.core.errors import RequestError
from hvscale.trainer.data import pairs, resize, sources
from hvscale.trainer.data.check import check
from hvscale.trainer.data.classes import class_folders, training_crop, validation_crop
from hvscale.trainer.data.images import Pixels, decode, decode_transparency, decode_upright
from hvscale.trainer.data.make_lr import make_lr
from hvscale.trainer.data.pairs import Photo
from hvscale.trainer.data.sources import image_set, split
from tests.conftest import HANG_SECONDS

WriteImage = Callable[[Path, int, int], None]


@pytest.fixture
def write_image() -> WriteImage:
    """Writes an RGB image of noise of the given width and height."""
    random = np.random.default_rng(1)

    def write(file: Path, width: int, height: int) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file)

    return write


def load(data: Path | str, holdout: str | None = None, min_side: int = 16) -> tuple[list[Photo], Photo]:
    training, validation = split(image_set(str(data), 2), None, None, holdout)
    (held_out,) = [pairs.load_photo(pair, 2, min_side) for pair in validation.pairs]
    return [pairs.load_photo(pair, 2, min_side) for pair in training.pairs], held_out


def test_bundled_photos_need_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("a network connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    photos, holdout = load("bundled", "flower", 96)
    assert [photo.name for photo in photos] == ["astronaut", "chelsea", "china", "coffee", "motorcycle_left", "rocket"]
    assert holdout.name == "flower"
    assert holdout.hr.shape == (426, 640, 3)


def test_folder_holds_out_its_last_photo(photos: Path) -> None:
    (photos / "notes.txt").write_text("not a photo")
    training, holdout = load(photos)
    assert ([photo.name for photo in training], holdout.name) == (["a", "b"], "c")


def test_hidden_files_are_no_photos(photos: Path) -> None:
    (photos / "._c.png").write_bytes(b"\0\5\x16\7 of macOS")
    assert [pair.name for pair in image_set(str(photos), 2).pairs] == ["a", "b", "c"]


def test_folder_with_ranges_of_positions(photos: Path) -> None:
    training, validation = split(image_set(str(photos), 2), "2-3", "1", None)
    assert [pair.name for pair in training.pairs] == ["b", "c"]
    assert [pair.name for pair in validation.pairs] == ["a"]


@pytest.mark.parametrize("scale", [2, 3])
def test_div2k_with_its_own_low_resolution(tmp_path: Path, write_image: WriteImage, scale: int) -> None:
    for number in (1, 2, 800, 801, 810, 811):
        write_image(tmp_path / f"DIV2K/DIV2K_train_HR/{number:04d}.png", 12 * scale, 10 * scale)
        write_image(tmp_path / f"DIV2K/DIV2K_train_LR_bicubic/X{scale}/{number:04d}x{scale}.png", 12, 10)
    for root in (tmp_path, tmp_path / "DIV2K"):
        found = image_set(str(root), scale)
        training, validation = split(found, None, None, None)
        assert [pair.name for pair in training.pairs] == ["0001", "0002", "0800"]
        assert [pair.name for pair in validation.pairs] == ["0801", "0810"]
        assert validation.title == "DIV2K 801-810"
    photo = pairs.load_photo(training.pairs[1], scale, 8)
    low = tmp_path / f"DIV2K/DIV2K_train_LR_bicubic/X{scale}/0002x{scale}.png"
    assert np.array_equal(photo.lr[:], decode(low))
    training, validation = split(found, "1-2", "800-811", None)
    assert (len(training.pairs), len(validation.pairs)) == (2, 4)


def test_div2k_with_a_separate_validation_folder(tmp_path: Path, write_image: WriteImage) -> None:
    write_image(tmp_path / "DIV2K_train_HR/0001.png", 24, 20)
    write_image(tmp_path / "DIV2K_valid_HR/0801.png", 24, 20)
    write_image(tmp_path / "DIV2K_valid_LR_bicubic/X2/0801x2.png", 12, 10)
    training, validation = split(image_set(str(tmp_path), 2), None, None, None)
    assert [pair.lr for pair in training.pairs] == [None]
    assert [pair.lr for pair in validation.pairs] == [tmp_path / "DIV2K_valid_LR_bicubic/X2/0801x2.png"]


def test_benchmark_set(tmp_path: Path, write_image: WriteImage) -> None:
    write_image(tmp_path / "Set5/HR/baby.png", 25, 21)
    write_image(tmp_path / "Set5/LR_bicubic/X2/babyx2.png", 12, 10)
    found = image_set(str(tmp_path / "Set5"), 2)
    assert (found.title, found.layout) == ("Set5", "benchmark")
    photo = pairs.load_photo(found.pairs[0], 2, 8)
    assert (photo.hr.shape, photo.lr.shape) == ((20, 24, 3), (10, 12, 3))


def test_missing_low_resolution_is_computed(tmp_path: Path, write_image: WriteImage) -> None:
    write_image(tmp_path / "Set5/HR/baby.png", 25, 21)
    (pair,) = image_set(str(tmp_path / "Set5"), 3).pairs
    photo = pairs.load_photo(pair, 3, 8)
    assert photo.hr.shape == (21, 24, 3)
    assert np.array_equal(photo.lr[:], resize.shrink(photo.hr[:], 3))


def test_missing_and_mismatched_low_resolution_image(tmp_path: Path, write_image: WriteImage) -> None:
    write_image(tmp_path / "Set5/HR/baby.png", 24, 20)
    write_image(tmp_path / "Set5/LR_bicubic/X2/birdx2.png", 12, 10)
    with pytest.raises(RequestError, match=r"HR/baby\.png has no low-resolution image .*X2/babyx2\.png"):
        image_set(str(tmp_path / "Set5"), 2)
    write_image(tmp_path / "Set5/LR_bicubic/X2/babyx2.png", 8, 10)
    (pair,) = image_set(str(tmp_path / "Set5"), 2).pairs
    with pytest.raises(RequestError, match=r"babyx2\.png is 8x10 and .*baby\.png 24x20: at scale 2 12x10 was expected"):
        pairs.load_photo(pair, 2, 8)


@pytest.mark.parametrize(
    ("training", "validation", "message"),
    [
        ("1-2", "2-3", "training images 1-2 and validation images 2-3 overlap"),
        ("1-2", "7-9", "has no images 7-9: it has 1 to 3"),
        ("first", "3", "--train-images first: not a range of image numbers; example: 1-800"),
        ("2-1", "3", "--train-images 2-1"),
        ("0-2", "3", "--train-images 0-2"),
        ("1-2", None, "is not DIV2K: give both --train-images and --val-images"),
        (None, "3", "is not DIV2K: give both --train-images and --val-images"),
    ],
)
def test_invalid_range(photos: Path, training: str | None, validation: str | None, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        split(image_set(str(photos), 2), training, validation, None)


def test_ranges_are_not_ignored_beside_a_held_out_photo(photos: Path) -> None:
    with pytest.raises(RequestError, match="--holdout excludes --train-images and --val-images"):
        split(image_set(str(photos), 2), "1", "2", "c")


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_other_image_modes_become_rgb(photos: Path, mode: str) -> None:
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new(mode, (40, 40)).save(photos / f"other.{suffix}")
    _, holdout = load(photos, "other")
    assert holdout.hr.shape == (40, 40, 3)
    assert holdout.hr[:].dtype == np.uint8


def test_only_upright_images_are_turned(tmp_path: Path) -> None:
    file, exif = tmp_path / "turned.jpg", Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    Image.new("RGB", (40, 20)).save(file, exif=exif)
    assert (decode(file).shape, decode_upright(file).shape) == ((20, 40, 3), (40, 20, 3))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_sixteen_bit_grey_keeps_its_upper_eight_bits(photos: Path, dtype: type) -> None:
    ramp: np.ndarray[Any, Any] = np.arange(0, 65536, 1024, dtype=dtype).reshape(1, 64).repeat(64, 0)
    Image.fromarray(ramp).save(photos / "ramp.tif")
    decoded = load(photos, "ramp")[1].hr[:]
    assert (decoded == np.arange(0, 256, 4, dtype=np.uint8)[None, :, None]).all()
    for crop in (
        training_crop(photos / "ramp.tif", 32, np.random.default_rng(1)),
        validation_crop(photos / "ramp.tif", 32),
    ):
        assert 64 < crop.mean() < 192
        assert crop.std() > 20


@pytest.mark.parametrize(
    ("peak", "dtype"),
    [(255, np.int32), (70000, np.int32), (1, np.float32), (65535, np.float32), (np.nan, np.float32)],
)
def test_an_image_whose_white_is_unknown_is_refused(photos: Path, peak: float, dtype: type) -> None:
    """It would be all black, or white."""
    file = photos / "other.tif"
    Image.fromarray(np.linspace(0, peak, 1600).reshape(40, 40).astype(dtype)).save(file)
    for read in (decode, decode_upright):
        with pytest.raises(RequestError, match=rf"other\.tif .*its largest value is {peak}, .*: convert it to 8 bits"):
            read(file)
    [problem] = [one for one in check(str(photos), 8, lambda: None).problems if one.file == file]
    assert problem.kind == "unknown range"


def test_a_patch_size_is_refused_for_classes(tmp_path: Path) -> None:
    """Only super-resolution cuts patches."""
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / name / "1.png")
    assert check(str(tmp_path), None, lambda: None).problems == []
    with pytest.raises(RequestError, match=r"--patch-size is for super-resolution, and .* holds folders of classes"):
        check(str(tmp_path), 500, lambda: None)


def test_a_portable_float_map_does_not_become_black(tmp_path: Path) -> None:
    file = tmp_path / "map.pfm"
    file.write_bytes(b"Pf\n4 4\n-1.0\n" + np.full(16, 0.5, "<f4").tobytes())
    with pytest.raises(RequestError, match=r"map\.pfm .*its largest value is 0\.5, .*: convert it to 8 bits"):
        decode(file)
    file.write_bytes(b"Pf\n4 4\n-1.0\n" + np.full(16, 128, "<f4").tobytes())
    assert decode(file).max() == 128


@pytest.mark.parametrize("white", [255, 100, 65535])
def test_bits_of_portable_pixel_maps_are_checked(photos: Path, white: int) -> None:
    values = np.full(40 * 40 * 3, white, ">u2" if white > 255 else "u1")
    (photos / "other.ppm").write_bytes(f"P6 40 40 {white}\n".encode() + values.tobytes())
    found = {problem.kind for problem in check(str(photos), 8, lambda: None).problems}
    assert ("16-bit" in found) == (white > 255)
    assert decode(photos / "other.ppm").min() == 255


@pytest.mark.parametrize("mode", ["L", "I;16", "F", "RGB"])
def test_bits_of_tiff_files_are_checked(photos: Path, mode: str) -> None:
    Image.new(mode, (40, 40)).save(photos / "other.tif")
    found = {problem.kind for problem in check(str(photos), 8, lambda: None).problems}
    assert ("16-bit" in found) == (mode == "I;16")
    assert ("grey" in found) == (mode != "RGB")


def test_a_transparent_value_of_16_bits_is_that_pixel_only_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "transparent.png"
    values = np.array([[0, 255, 256], [30000, 30001, 65535]], np.uint16)
    for value in (255, 30000):
        turned = Image.Exif()
        turned[0x0112] = 3  # upside down
        Image.fromarray(values).save(file, transparency=value, exif=turned)
        alpha = decode_transparency(file)
        assert alpha is not None
        assert np.asarray(alpha).tolist() == np.where(values == value, 0, 255)[::-1, ::-1].tolist()
        assert decode(file)[..., 0].tolist() == (values >> 8).tolist()
    Image.new("RGB", (4, 4)).save(file, transparency=(30000, 0, 0))
    with pytest.raises(RequestError, match=r"transparent\.png .*\(30000, 0, 0\) has 16 bits: convert it to 8 bits"):
        decode_transparency(file)
    assert decode(file).max() == 0


@pytest.mark.parametrize("name", ["none", "n" * 300])
def test_missing_and_empty_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="no such folder"):
        image_set(str(tmp_path / name), 2)
    with pytest.raises(RequestError, match="no images in it"):
        image_set(str(tmp_path), 2)


@pytest.mark.parametrize("refused", ["iterdir", "is_dir"])
def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, write_image: WriteImage, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    for name in ("images/a.png", "classes/1/a.png", "classes/2/a.png", "set/HR/a.png", "set/LR_bicubic/X2/a.png"):
        write_image(tmp_path / name, 8, 8)
    closed = [tmp_path / name for name in ("images", "classes/2", "set/LR_bicubic")]
    allowed: Any = getattr(Path, refused)

    def refuse(path: Path) -> Any:
        if any(path == folder or folder in path.parents for folder in closed) and (refused, path) != (
            "is_dir",
            closed[0],
        ):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return allowed(path)

    monkeypatch.setattr(Path, refused, refuse)
    for data in ("images", "set"):
        with pytest.raises(RequestError, match=rf"/{data}\S* cannot be read: Permission denied$"):
            image_set(str(tmp_path / data), 2)
    with pytest.raises(RequestError, match=r"/classes/2 cannot be read: Permission denied$"):
        class_folders(str(tmp_path / "classes"), None)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "tif", "webp"])
def test_truncated_photo_is_named(photos: Path, suffix: str) -> None:
    cut = photos / f"cut.{suffix}"
    Image.effect_noise((64, 64), 90).convert("RGB").save(cut)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 2 // 3])
    with pytest.raises(RequestError) as caught:
        load(photos)
    assert str(cut) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not an image at all", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_file_that_is_not_an_image_is_named(photos: Path, content: bytes) -> None:
    wrong = photos / "wrong.png"
    wrong.write_bytes(content)
    with pytest.raises(RequestError, match=r"wrong\.png cannot be decoded"):
        load(photos)


def test_image_above_the_limit_of_pillow_is_not_called_truncated(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(RequestError, match=r"cannot be decoded \(more than Pillow's limit of 2000 pixels\)"):
        decode(photos / "a.png")
    (photos / "d.png").symlink_to("nowhere")
    details = {problem.file.name: problem.detail for problem in check(str(photos), 8, lambda: None).problems}
    assert details["a.png"] == "more than Pillow's limit of 2000 pixels"
    assert details["d.png"] == "No such file or directory"


def test_an_interrupted_check_reads_no_more_images(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    interrupted = threading.Event()
    for number in range(50):
        (photos / f"d{number}.png").hardlink_to(photos / "a.png")
    monkeypatch.setattr("hvscale.trainer.data.check.available_cores", lambda: 1)

    def note(file: Path) -> Pixels:
        read.append(file)
        if len(read) > 1:  # holds the others until the first one has interrupted the check
            interrupted.wait(HANG_SECONDS)
            time.sleep(0.2)
        return decode(file)

    monkeypatch.setattr("hvscale.trainer.data.check.decode", note)

    def interrupt() -> None:
        interrupted.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(str(photos), 8, interrupt)
    assert len(read) < 50


def test_low_resolution_images_of_one_name(photos: Path) -> None:
    Image.new("RGB", (40, 40)).save(photos / "a.bmp")
    with pytest.raises(RequestError, match="has 2 images named a, for one low-resolution image: rename one"):
        make_lr(photos, photos / "lr", [2], lambda: None)
    assert not (photos / "lr").exists()


def test_the_current_folder_has_a_name(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    assert image_set(".", 2).title == photos.name


def test_too_small_photo_is_named(photos: Path) -> None:
    with pytest.raises(RequestError, match=r"png is 60x52: it must have at least 96x96 pixels"):
        load(photos, min_side=96)


def test_unknown_holdout_lists_the_names(photos: Path) -> None:
    with pytest.raises(RequestError, match="no photo named 'd' to hold out; choose from a, b, c"):
        load(photos, "d")


def test_duplicate_names_and_a_single_photo(photos: Path) -> None:
    Image.new("RGB", (40, 40)).save(photos / "a.bmp")
    with pytest.raises(RequestError, match="has two photos named a"):
        load(photos)
    for name in ("a.bmp", "b.png", "c.png"):
        (photos / name).unlink()
    with pytest.raises(RequestError, match="has one photo"):
        load(photos)


def test_missing_photos_are_installed_with_packages_that_a_registry_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sources, "PHOTOS", Path("/nowhere"))
    with pytest.raises(RequestError, match=r"-m pip install scikit-image scikit-learn$"):
        sources.bundled_files("skimage")
