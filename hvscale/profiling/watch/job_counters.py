"""The counters of all ranks of a running job, and what was counted since the last look."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.counters import COUNTER, operation_codes
from hvscale.profiling.read.profile_file import STEP, StepSums, ranks_of_job
from hvscale.profiling.watch.rank_file import (
    RankFile,
    Reading,
    by_newest_steps,
    subtract_counters,
    sum_counters,
)

STARTED_BY_A_RANK = "an MPI program on another number of ranks, which a rank started, is left out"
READERS = 8  # threads: over a network, a read waits for the server


@dataclass(frozen=True)
class _Seen:
    at: float  # time.monotonic
    reading: Reading


@dataclass(frozen=True)
class Counted:
    """Calls since the start and since the last look; counters are of dtype COUNTER, by kind.

    `seconds`: the time between the two looks, a mean over the `ranks_read` in this look.
    """

    total: NDArray[Any]
    new: NDArray[Any]
    seconds: float
    ranks_read: int
    step_marks: int  # of the lowest rank, since the start
    new_step_marks: int
    step_sums: StepSums | None  # of the lowest rank, since its first mark
    ranks: list[int]
    operations: tuple[str, ...]


@dataclass
class JobCounters:
    """Reads the profile files of a run again and again."""

    run: RunFolder
    files: dict[str, RankFile] = field(default_factory=dict)
    seen: dict[str, _Seen] = field(default_factory=dict)
    looked_at: float | None = None

    def look(self) -> tuple[Counted, list[str]]:
        """Read all files; the second value has a line for each file that cannot be read.

        Such a file counts with its last reading.
        """
        for path in sorted(self.run.hvprof.glob("rank-*.hvp")):
            self.files.setdefault(path.name, RankFile(path))
        with ThreadPoolExecutor(READERS) as pool:
            found = list(pool.map(_read, self.files.values()))
        headers = [one.reading.header for one in found if isinstance(one, _Seen)]
        operations, size = next((one.operations for one in headers), ()), ranks_of_job(headers)
        problems, new, marks = [], [np.empty(0, COUNTER)], []
        seconds: dict[int, float] = {}
        for name, one in zip(self.files, found, strict=True):
            if isinstance(one, str):
                problems.append(one)
                continue
            if one.reading.header.operations != operations:
                problems.append(f"{self.files[name].path} numbers its operations as another version of hvscale does")
                continue
            if one.reading.header.world_size != size:
                self.seen.pop(name, None)  # it may have been the first file
                problems.append(f"{self.files[name].path}: {STARTED_BY_A_RANK}")
                continue
            before = self.seen.get(name)
            difference = one.reading.counters
            if before is not None:
                difference = subtract_counters(difference, before.reading.counters)
            since = before.at if before is not None else self.looked_at if self.looked_at is not None else one.at
            rank = one.reading.header.rank
            seconds[rank] = max(seconds.get(rank, 0.0), one.at - since)
            new.append(difference)
            marks.append((*by_newest_steps(one.reading.header), name, _step_marks(difference)))
            self.seen[name] = one
            if one.reading.damaged_counters:
                problems.append(
                    f"{self.files[name].path} is damaged: {one.reading.damaged_counters} counters are ignored"
                )
        self.looked_at = time.monotonic()
        lowest = min(marks, default=None)
        lowest_reading = self.seen[lowest[3]].reading if lowest is not None else None
        counted = Counted(
            total=_sum([one.reading.counters for one in self.seen.values()]),
            new=_sum(new),
            seconds=sum(seconds.values()) / len(seconds) if seconds else 0.0,
            ranks_read=len(seconds),
            step_marks=_step_marks(lowest_reading.counters) if lowest_reading is not None else 0,
            new_step_marks=lowest[4] if lowest is not None else 0,
            step_sums=lowest_reading.header.steps if lowest_reading is not None else None,
            ranks=sorted({one.reading.header.rank for one in self.seen.values()}),
            operations=operations,
        )
        return counted, problems

    def readable(self) -> Iterator[tuple[RankFile, Reading]]:
        """The files, with their last reading."""
        for name, one in self.seen.items():
            yield self.files[name], one.reading


def _read(file: RankFile) -> _Seen | str:
    try:
        return _Seen(time.monotonic(), file.read())
    except RequestError as error:
        return str(error)
    except OSError as error:
        return f"{file.path} cannot be read: {error.strerror}"


def _sum(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    entries = np.concatenate([np.empty(0, COUNTER), *pieces])
    return sum_counters(entries, entries["key"])


def _step_marks(entries: NDArray[Any]) -> int:
    return int(entries["calls"][operation_codes(entries["key"]) == STEP].sum())
