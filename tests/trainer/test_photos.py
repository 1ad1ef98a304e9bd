"""Photos: the bundled set, folders, and what is wrong with a file said in one line that names it."""

import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hvscale.errors import RequestError
from hvscale.trainer.photos import load_photos


def test_bundled_photos_need_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    photos, holdout = load_photos("bundled", "flower", 96)
    assert [photo.name for photo in photos] == ["astronaut", "chelsea", "china", "coffee", "motorcycle_left", "rocket"]
    assert holdout.name == "flower"
    assert holdout.pixels.shape == (427, 640, 3)


def test_a_folder_holds_out_its_last_photo(photos: Path) -> None:
    (photos / "notes.txt").write_text("not a photo")
    training, holdout = load_photos(str(photos), None, 16)
    assert ([photo.name for photo in training], holdout.name) == (["a", "b"], "c")


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_other_kinds_of_images_become_rgb(photos: Path, mode: str) -> None:
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new(mode, (40, 40)).save(photos / f"other.{suffix}")
    _, holdout = load_photos(str(photos), "other", 16)
    assert holdout.pixels.shape == (40, 40, 3)
    assert holdout.pixels.dtype == np.uint8


def test_a_missing_an_empty_and_an_unreadable_folder(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such folder"):
        load_photos(str(tmp_path / "none"), None, 16)
    with pytest.raises(RequestError, match="no images in it"):
        load_photos(str(tmp_path), None, 16)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "tif", "webp"])
def test_a_truncated_photo_is_named(photos: Path, suffix: str) -> None:
    cut = photos / f"cut.{suffix}"
    Image.effect_noise((64, 64), 90).convert("RGB").save(cut)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 2 // 3])
    with pytest.raises(RequestError) as caught:
        load_photos(str(photos), None, 16)
    assert str(cut) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not an image at all", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_a_file_that_is_no_image_is_named(photos: Path, content: bytes) -> None:
    wrong = photos / "wrong.png"
    wrong.write_bytes(content)
    with pytest.raises(RequestError, match=r"wrong\.png cannot be decoded"):
        load_photos(str(photos), None, 16)


def test_a_photo_too_small_is_named(photos: Path) -> None:
    with pytest.raises(RequestError, match=r"a\.png is 60x52: at least 96x96 pixels are needed"):
        load_photos(str(photos), None, 96)


def test_an_unknown_holdout_lists_the_names(photos: Path) -> None:
    with pytest.raises(RequestError, match="no photo named 'd' to hold out: there are a, b, c"):
        load_photos(str(photos), "d", 16)


def test_two_photos_of_one_name_and_one_photo_alone(photos: Path) -> None:
    Image.new("RGB", (40, 40)).save(photos / "a.bmp")
    with pytest.raises(RequestError, match="has two photos named a"):
        load_photos(str(photos), None, 16)
    for name in ("a.bmp", "b.png", "c.png"):
        (photos / name).unlink()
    with pytest.raises(RequestError, match="has one photo"):
        load_photos(str(photos), None, 16)
