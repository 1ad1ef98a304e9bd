"""What a source of profiles hands on: every message of a run, in columns; and the list of sources."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hvscale.run_folder import RunFolder


@dataclass(frozen=True)
class Events:
    """The messages of a run: arrays of one length n, in no particular order."""

    operations: tuple[str, ...]  # names; `operation` is an index into them
    rank: NDArray[np.int32]
    operation: NDArray[np.uint8]
    bytes: NDArray[np.int64]
    start_ns: NDArray[np.int64]  # since 1970
    duration_ns: NDArray[np.int64]
    communicator_size: NDArray[np.int32]
    bitwise: NDArray[np.bool_]  # the reduction is a bitwise one
    thread: NDArray[np.int64]  # that called, by the kernel's number; 0 where the source does not tell

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True)
class Recording:
    """The messages of a run, and how far they speak for the whole of it."""

    source: str
    events: Events
    np: int  # ranks of the job
    ranks: list[int]  # ranks that were recorded
    ranks_per_event: int = 1  # a source that sees one rank only counts its messages for all of them
    overwritten: int = 0
    warnings: list[str] = field(default_factory=list)


def no_events() -> Events:
    return Events(
        operations=(),
        rank=np.empty(0, np.int32),
        operation=np.empty(0, np.uint8),
        bytes=np.empty(0, np.int64),
        start_ns=np.empty(0, np.int64),
        duration_ns=np.empty(0, np.int64),
        communicator_size=np.empty(0, np.int32),
        bitwise=np.empty(0, np.bool_),
        thread=np.empty(0, np.int64),
    )


# A source answers None when the run holds nothing of its kind.
Source = Callable[[RunFolder], Recording | None]
SOURCES: dict[str, Source] = {}


def source(name: str) -> Callable[[Source], Source]:
    """Registers a reader under the name that stands in a breakdown's `source`."""

    def register(read: Source) -> Source:
        SOURCES[name] = read
        return read

    return register
