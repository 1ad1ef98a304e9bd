"""Shows by marker files whether each rank has begun and finished MPI_Init or hvd.init().

The preloaded library that creates them also reports the MPI library: see reported_library.py.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from hvscale.core.built_library import built_library, preloaded

LIBRARY = "libhvinit-marker.so"
# The path of a rank's files without their extension. The controller sets the folder, and hvrank
# adds the rank.
VARIABLE = "HVSCALE_INIT_MARKER"


def folder(run: Path) -> Path:
    return run / "ranks"


def begun_file(run: Path, rank: int) -> Path:
    """The file that a rank creates when it enters MPI_Init."""
    return folder(run) / f"rank-{rank:05d}.init-begun"


def done_file(run: Path, rank: int) -> Path:
    """The file that a rank creates when MPI_Init has succeeded."""
    return folder(run) / f"rank-{rank:05d}.init-done"


def environment(run: Path, others: Mapping[str, str]) -> dict[str, str]:
    """Variables that make the ranks' commands create these files.

    `others`: the commands' own LD_PRELOAD and so on. Raises RequestError if the library is missing,
    or at a path that LD_PRELOAD cannot name.
    """
    preload = preloaded(built_library(LIBRARY), others)
    # A program built with a sanitizer refuses to start behind a preloaded library. The user's value
    # comes last and takes precedence.
    sanitizer = ":".join(filter(None, ["verify_asan_link_order=0", others.get("ASAN_OPTIONS")]))
    return {VARIABLE: str(folder(run)), **preload, "ASAN_OPTIONS": sanitizer}


class InitDeadline:
    """A time limit in seconds for MPI_Init, from the first rank's start; None: no limit."""

    def __init__(self, run: Path, np: int, seconds: float | None) -> None:
        self.run, self.np, self.seconds = run, np, seconds
        self.until: float | None = None

    def start_clock(self) -> None:
        """Start counting; the first rank runs."""
        if self.until is None:
            self.until = time.monotonic() + (self.seconds if self.seconds is not None else float("inf"))

    def late_ranks(self, ended: set[int]) -> list[int]:
        """The ranks that miss the deadline.

        Those that have not begun MPI_Init, or if there are none, those inside it. `ended` ranks do
        not count.
        """
        if self.until is None or time.monotonic() < self.until:
            return []
        missing = [rank for rank in range(self.np) if rank not in ended and not done_file(self.run, rank).exists()]
        if not missing:
            self.until = float("inf")
        return [rank for rank in missing if not begun_file(self.run, rank).exists()] or missing

    def describe(self, late: list[int]) -> str:
        """What the first late rank is waiting for, for an error."""
        if begun_file(self.run, late[0]).exists():
            return (
                f"is still in MPI_Init or hvd.init() {self.seconds:g} s after the start: ranks cannot reach each other"
            )
        return (
            f"has not called MPI_Init or hvd.init() {self.seconds:g} s after the start, and the other ranks wait for it"
        )
