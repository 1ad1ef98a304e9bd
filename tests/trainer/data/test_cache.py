"""The disk cache of decoded images: mapping, size limit, changed images, killed processes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from PIL import Image

from hvscale.core.errors import RequestError
from hvscale.trainer.data.cache import DecodedCache, LazyImage
from hvscale.trainer.data.pairs import Photo, cached_photos, load_photo, recipes
from hvscale.trainer.data.sources import image_set

T = TypeVar("T")


class SingleProcess:
    local_rank, local_size = 0, 1

    def all_or_fail(self, work: Callable[[], T]) -> T:
        return work()


HR, LR = 128 + 52 * 60 * 3, 128 + 26 * 30 * 3  # bytes of the cached files of one photo
ALL = 3 * (HR + LR)


def open_photos(photos: Path, cache: DecodedCache) -> list[Photo]:
    return cached_photos(image_set(str(photos), 2).pairs, 2, 16, cache, SingleProcess())


def files(cache: DecodedCache) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in cache.folder.iterdir()}


def test_mapped_images_equal_decoded_ones(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL)
    found = open_photos(photos, cache)
    for photo, pair in zip(found, image_set(str(photos), 2).pairs, strict=True):
        direct = load_photo(pair, 2, 16)
        assert np.array_equal(photo.hr[:], direct.hr[:])
        assert np.array_equal(photo.lr[:], direct.lr[:])
        assert photo.hr[:].flags.owndata is False
    assert sorted(files(cache).values()) == [LR] * 3 + [HR] * 3


def test_images_are_decoded_once(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL)
    open_photos(photos, cache)
    inodes = {file.name: file.stat().st_ino for file in cache.folder.iterdir()}
    open_photos(photos, cache)
    assert {file.name: file.stat().st_ino for file in cache.folder.iterdir()} == inodes


def test_an_image_that_changes_after_its_header_was_read_is_one_error(photos: Path, tmp_path: Path) -> None:
    pair = image_set(str(photos), 2).pairs[0]
    hr, lr = recipes(pair, 2, 16)
    lazy, cache = LazyImage(lr), DecodedCache(tmp_path / "decoded", ALL)
    cache.make_room([hr])
    Image.new("RGB", (40, 40)).save(pair.hr)
    for use in (hr.pixels, lambda: lazy[:8], lambda: cache.fill([hr])):
        with pytest.raises(RequestError, match=r"a\.png has changed since its size was read"):
            use()
    pair.hr.unlink()
    with pytest.raises(RequestError, match=r"a\.png cannot be read: No such file or directory"):
        cache.make_room([hr])


def test_files_of_another_user_are_read_and_left(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL)
    open_photos(photos, cache)
    (cache.folder / f".{'0' * 32}.npy.1").write_bytes(b"")
    os.utime(cache.folder / f".{'0' * 32}.npy.1", (0, 0))
    before = files(cache)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert all(photo.hr[:].flags.owndata is False for photo in open_photos(photos, cache))
    cache.make_room(list(recipes(image_set(str(photos), 3).pairs[0], 3, 16)))
    assert files(cache) == before
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(RequestError, match=r"cannot use the cache .*/decoded: .*--cache-dir"):
        cache.make_room([])


def test_changed_image_is_decoded_again(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", 2 * ALL)
    open_photos(photos, cache)
    Image.new("RGB", (60, 52), (1, 2, 3)).save(photos / "a.png")
    assert (open_photos(photos, cache)[0].hr[:] == (1, 2, 3)).all()


def test_images_beyond_the_limit_are_decoded_on_demand(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL - 1)
    found = open_photos(photos, cache)
    assert sum(files(cache).values()) <= cache.limit_bytes
    assert isinstance(found[2].lr, LazyImage)
    assert np.array_equal(found[2].lr[3:9, 4:8], load_photo(image_set(str(photos), 2).pairs[2], 2, 16).lr[3:9, 4:8])
    none = DecodedCache(tmp_path / "none", 0)
    assert all(isinstance(photo.hr, LazyImage) for photo in open_photos(photos, none))
    assert not none.folder.exists()


def test_least_recently_used_images_are_removed_first(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL + HR)
    open_photos(photos, cache)
    before = set(files(cache))
    for number, name in enumerate(sorted(before)):
        os.utime(cache.folder / name, (1000 + number, 1000 + number))
    other = tmp_path / "other"
    other.mkdir()
    Image.new("RGB", (60, 52)).save(other / "d.png")
    open_photos(other, cache)
    kept = before & set(files(cache))
    assert sum(files(cache).values()) <= cache.limit_bytes
    assert kept == set(sorted(before)[len(before) - len(kept) :])
    assert kept


def test_abandoned_files_are_removed_and_truncated_ones_rewritten(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL)
    open_photos(photos, cache)
    left = cache.folder / f".{'a1' * 16}.npy.{'0f' * 8}"
    left.write_bytes(b"half")
    os.utime(left, (time.time() - 7200,) * 2)
    cut = max(cache.folder.glob("*.npy"), key=lambda file: file.stat().st_size)
    cut.write_bytes(cut.read_bytes()[:1000])
    open_photos(photos, cache)
    assert not left.exists()
    assert sorted(files(cache).values()) == [LR] * 3 + [HR] * 3


def test_other_files_in_the_folder_are_left_alone(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "home"
    (folder / "sub").mkdir(parents=True)
    for name in ("thesis.tex", "array.npy", ".hidden.npy.1", "sub/own.npy"):
        (folder / name).write_bytes(b"own")
    for path in folder.rglob("*"):
        os.utime(path, (1000, 1000))
    before = {path.relative_to(folder) for path in folder.rglob("*")}
    open_photos(photos, DecodedCache(folder, ALL))
    assert before < {path.relative_to(folder) for path in folder.rglob("*")}


def test_a_name_that_is_not_utf_8_has_a_cached_file(photos: Path, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    photos.rename(odd)
    cache = DecodedCache(tmp_path / "decoded", ALL)
    open_photos(odd, cache)
    assert sorted(files(cache).values()) == [LR] * 3 + [HR] * 3
