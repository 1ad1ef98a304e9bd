"""Decoded images on disk: made once, mapped, bounded, renewed when the image changes, sound after a
kill.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from hvscale.trainer.data.cache import DecodedCache, LazyImage
from hvscale.trainer.data.pairs import Photo, cached_photos, load_photo
from hvscale.trainer.data.sources import image_set

T = TypeVar("T")


class Alone:
    local_rank, local_size = 0, 1

    def all_or_fail(self, work: Callable[[], T]) -> T:
        return work()


HR, LR = 128 + 52 * 60 * 3, 128 + 26 * 30 * 3  # bytes of a file for one of the photos
ALL = 3 * (HR + LR)


def opened(photos: Path, cache: DecodedCache) -> list[Photo]:
    return cached_photos(image_set(str(photos), 2).pairs, 2, 16, cache, Alone())


def files(cache: DecodedCache) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in cache.folder.iterdir()}


def test_mapped_images_are_those_decoded(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL)
    found = opened(photos, cache)
    for photo, pair in zip(found, image_set(str(photos), 2).pairs, strict=True):
        direct = load_photo(pair, 2, 16)
        assert np.array_equal(photo.hr[:], direct.hr[:])
        assert np.array_equal(photo.lr[:], direct.lr[:])
        assert photo.hr[:].flags.owndata is False
    assert sorted(files(cache).values()) == [LR] * 3 + [HR] * 3


def test_nothing_is_made_twice(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL)
    opened(photos, cache)
    inodes = {file.name: file.stat().st_ino for file in cache.folder.iterdir()}
    opened(photos, cache)
    assert {file.name: file.stat().st_ino for file in cache.folder.iterdir()} == inodes


def test_a_changed_image_is_decoded_anew(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", 2 * ALL)
    opened(photos, cache)
    Image.new("RGB", (60, 52), (1, 2, 3)).save(photos / "a.png")
    assert (opened(photos, cache)[0].hr[:] == (1, 2, 3)).all()


def test_what_does_not_fit_is_decoded_on_demand(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL - 1)
    found = opened(photos, cache)
    assert sum(files(cache).values()) <= cache.limit_bytes
    assert isinstance(found[2].lr, LazyImage)
    assert np.array_equal(found[2].lr[3:9, 4:8], load_photo(image_set(str(photos), 2).pairs[2], 2, 16).lr[3:9, 4:8])
    none = DecodedCache(tmp_path / "none", 0)
    assert all(isinstance(photo.hr, LazyImage) for photo in opened(photos, none))
    assert not none.folder.exists()


def test_the_limit_holds_over_data_sets_and_the_longest_unused_goes_first(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL + HR)
    opened(photos, cache)
    before = set(files(cache))
    for number, name in enumerate(sorted(before)):
        os.utime(cache.folder / name, (1000 + number, 1000 + number))
    other = tmp_path / "other"
    other.mkdir()
    Image.new("RGB", (60, 52)).save(other / "d.png")
    opened(other, cache)
    kept = before & set(files(cache))
    assert sum(files(cache).values()) <= cache.limit_bytes
    assert kept == set(sorted(before)[len(before) - len(kept) :])
    assert kept


def test_what_a_killed_process_left_goes_and_a_file_cut_short_is_made_again(photos: Path, tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "decoded", ALL)
    opened(photos, cache)
    left = cache.folder / ".abc.npy.x1y2z3"
    left.write_bytes(b"half")
    os.utime(left, (time.time() - 7200,) * 2)
    cut = max(cache.folder.glob("*.npy"), key=lambda file: file.stat().st_size)
    cut.write_bytes(cut.read_bytes()[:1000])
    opened(photos, cache)
    assert not left.exists()
    assert sorted(files(cache).values()) == [LR] * 3 + [HR] * 3
