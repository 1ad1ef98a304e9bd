"""Whether every rank gets through the start of its communication (MPI_Init, hvd.init) in time: seen
from outside, by files the ranks leave.

The preloaded library that leaves them also reports the MPI library: see reported_library.py.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from hvscale.core.built_library import built_library, preloaded

LIBRARY = "libhvinit-marker.so"
# Where a rank's files lie, without their endings: rank.py makes it from the folder that the
# controller names.
VARIABLE = "HVSCALE_INIT_MARKER"


def folder(run: Path) -> Path:
    return run / "ranks"


def begun_file(run: Path, rank: int) -> Path:
    """The file that a rank leaves as it begins to look for the others."""
    return folder(run) / f"rank-{rank:05d}.init-begun"


def done_file(run: Path, rank: int) -> Path:
    """The file that a rank leaves once it has found them."""
    return folder(run) / f"rank-{rank:05d}.init-done"


def environment(run: Path, others: Mapping[str, str]) -> dict[str, str]:
    """What the ranks' commands need in their environment to leave these files; `others` is what
    they have in LD_PRELOAD and so on.

    Raises RequestError when the library is missing or lies where LD_PRELOAD cannot name it.
    """
    preload = preloaded(built_library(LIBRARY), others)
    # A program that was built with a sanitizer would not start behind a preloaded library. The
    # user's own word comes last and wins.
    sanitizer = ":".join(filter(None, ["verify_asan_link_order=0", others.get("ASAN_OPTIONS")]))
    return {VARIABLE: str(folder(run)), **preload, "ASAN_OPTIONS": sanitizer}


class InitDeadline:
    """Counts from the moment in which the first rank was seen; `seconds` None never ends."""

    def __init__(self, run: Path, np: int, seconds: float | None) -> None:
        self.run, self.np, self.seconds = run, np, seconds
        self.until: float | None = None

    def start_clock(self) -> None:
        """The first rank runs."""
        if self.until is None:
            self.until = time.monotonic() + (self.seconds if self.seconds is not None else float("inf"))

    def late_ranks(self, ended: set[int]) -> list[int]:
        """The ranks that the start still waits for at its deadline: those that have not begun it,
        or else all that are in it.

        `ended` ranks are not waited for.
        """
        if self.until is None or time.monotonic() < self.until:
            return []
        missing = [rank for rank in range(self.np) if rank not in ended and not done_file(self.run, rank).exists()]
        if not missing:
            self.until = float("inf")
        return [rank for rank in missing if not begun_file(self.run, rank).exists()] or missing

    def describe(self, late: list[int]) -> str:
        """What is known about the first of them, for an error."""
        if begun_file(self.run, late[0]).exists():
            return f"is still in MPI_Init or hvd.init() {self.seconds:g} s after the start: the ranks do not reach each other"
        return f"has not called MPI_Init or hvd.init() {self.seconds:g} s after the start, so the others wait for it"
