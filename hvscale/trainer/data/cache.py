"""Decoded images on disk: NumPy files that the ranks of a node map into memory and share.

A file's name is a hash of its source (path, size, modification time) and of its processing. Files
are written atomically, so ranks, jobs and nodes may fill one folder at the same time.
"""

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import write_atomically
from hvscale.trainer.data.images import Pixels, PixelSource

HEADER_BYTES = 128  # header of a NumPy file
ABANDONED_SECONDS = 3600.0  # older temporary files were left by killed processes
LAZY_IMAGES_KEPT = 4  # lazy images that a rank keeps decoded in memory
CACHE_OPTIONS = ("cache_gb", "cache_dir")  # fields of TrainConfig, for data that is cached
# The folder may hold other files, which are the user's.
CACHED = re.compile(r"[0-9a-f]{32}\.npy")
UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.npy\.[0-9a-f]+")  # a name of `write_atomically`


@dataclass(frozen=True)
class Recipe:
    """How to decode and process one image."""

    file: Path
    processing: str
    """Identifies what `make` does; part of the cached file's name."""
    shape: tuple[int, int, int]
    make: Callable[[], Pixels]

    @property
    def bytes(self) -> int:
        return HEADER_BYTES + self.shape[0] * self.shape[1] * self.shape[2]

    def pixels(self) -> Pixels:
        """The image. Raises RequestError if it cannot be decoded, or has another size by now."""
        pixels = self.make()
        if pixels.shape != self.shape:
            raise RequestError(f"{self.file} has changed since its size was read: start again when it is complete")
        return pixels

    def name(self) -> str:
        """The cached file's name. Raises RequestError if the image was removed."""
        try:
            status = self.file.stat()
        except OSError as error:
            raise RequestError(f"{self.file} cannot be read: {error.strerror}") from error
        source = f"{self.file.absolute()}\n{status.st_size}\n{status.st_mtime_ns}\n{self.processing}"
        return hashlib.sha256(os.fsencode(source)).hexdigest()[:32] + ".npy"


class LazyImage:
    """An image that is decoded when it is sliced. The last few stay in memory."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @property
    def shape(self) -> tuple[int, ...]:
        return self.recipe.shape

    def __getitem__(self, place: Any) -> Pixels:
        cut: Pixels = _decoded(self.recipe)[place]
        return cut


@lru_cache(maxsize=LAZY_IMAGES_KEPT)
def _decoded(recipe: Recipe) -> Pixels:
    return recipe.pixels()


def default_folder() -> Path:
    """$HVSCALE_DECODED, or hvscale/decoded in $XDG_CACHE_HOME or ~/.cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HVSCALE_DECODED") or cache / "hvscale" / "decoded")


class DecodedCache:
    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """`limit_bytes`: maximum total size of the files in `folder`."""
        self.folder, self.limit_bytes = folder, limit_bytes

    def fitting(self, recipes: list[Recipe]) -> list[Recipe]:
        """The first recipes that together stay within the limit."""
        room, fitting = self.limit_bytes, []
        for recipe in recipes:
            room -= recipe.bytes
            if room < 0:
                break
            fitting.append(recipe)
        return fitting

    def make_room(self, recipes: list[Recipe]) -> None:
        """Remove abandoned files and, to stay within the limit, the least recently used ones.

        Call it in one process of a node before any process calls `fill`. Files that another job has
        mapped stay readable for that job. Those of other users stay where they cannot be removed.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            files = list(self.folder.iterdir())
        except OSError as error:
            raise RequestError(
                f"cannot use the cache {self.folder}: {error.strerror}. Choose another with --cache-dir, or turn it off with --cache-gb 0"
            ) from error
        wanted = {recipe.name() for recipe in recipes}
        others = []
        for file in files:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # another job's, or user's
                if CACHED.fullmatch(file.name) and file.name not in wanted:
                    status = file.stat()
                    others.append((status.st_mtime, status.st_size, file))
                elif UNFINISHED.fullmatch(file.name) and time.time() - file.stat().st_mtime > ABANDONED_SECONDS:
                    file.unlink()
        excess = sum(recipe.bytes for recipe in recipes) + sum(size for _, size, _ in others) - self.limit_bytes
        for _, size, file in sorted(others):
            if excess <= 0:
                break
            with contextlib.suppress(OSError):  # another user's, or a read-only disk
                file.unlink(missing_ok=True)
                excess -= size

    def fill(self, recipes: list[Recipe]) -> None:
        """Write the missing images.

        Raises RequestError if an image cannot be decoded or the disk is full.
        """
        for recipe in recipes:
            path = self.folder / recipe.name()
            if self._mapped(path, recipe) is not None:
                with contextlib.suppress(OSError):  # another user's, or a read-only disk
                    os.utime(path)  # marks the file as recently used
                continue
            pixels = np.ascontiguousarray(recipe.pixels())
            try:
                write_atomically(path, lambda stream, pixels=pixels: np.save(stream, pixels))  # type: ignore[misc]
            except OSError as error:
                raise RequestError(
                    f"cannot write the cache {self.folder}: {error.strerror}. "
                    "Free some space, choose another folder with --cache-dir, or lower --cache-gb"
                ) from error

    def open(self, recipe: Recipe) -> PixelSource:
        """The image mapped into memory, or a lazy image if it is not in the cache."""
        mapped = self._mapped(self.folder / recipe.name(), recipe)
        return LazyImage(recipe) if mapped is None else mapped

    def _mapped(self, path: Path, recipe: Recipe) -> Pixels | None:
        try:
            mapped: Pixels = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        except (OSError, ValueError, EOFError):
            return None
        return mapped if mapped.shape == recipe.shape and mapped.dtype == np.uint8 else None
