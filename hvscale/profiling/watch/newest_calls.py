"""What the newest records of the rings show: late ranks, and exposed communication."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.profiling.analyze.exposed import covered_ns
from hvscale.profiling.analyze.waiting import waiting
from hvscale.profiling.read.events import Events
from hvscale.profiling.read.profile_file import (
    BITWISE,
    BUFFER_BITS,
    RECORD,
    STEP,
    Header,
    communicator_identities,
    job_numbers,
)
from hvscale.profiling.watch.document import ExposedNow, LateNow
from hvscale.profiling.watch.job_counters import READERS
from hvscale.profiling.watch.rank_file import RankFile, Reading, by_newest_steps

LATE_RECORDS, LATE_RECORDS_IN_ALL = 512, 1 << 17  # newest records of each ring, and of all rings together
FEWEST_LATE_RECORDS = 128
STEP_RECORDS = 1 << 14  # of the lowest rank's ring: 1 MiB
MOST_STEPS = 50
NO_RING = "the job records counters only, without a ring of calls"


class UnavailableError(Exception):
    """Why a part is unknown."""


def late_now(files: list[tuple[RankFile, Reading]], ranks: Collection[int]) -> LateNow:
    """Who arrives last in the newest collectives, of the `ranks` of the job that have a ring.

    Raises UnavailableError.
    """
    by_start = sorted(files, key=lambda one: one[1].header.started_ns)
    with_ring = [(file, reading) for file, reading in by_start if reading.header.capacity]
    if not with_ring:
        raise UnavailableError(NO_RING if files else "no profile has a call")
    count = max(min(LATE_RECORDS, LATE_RECORDS_IN_ALL // len(with_ring)), FEWEST_LATE_RECORDS)
    with ThreadPoolExecutor(READERS) as pool:
        found = list(pool.map(lambda one: _newest(one[0], one[1], count), with_ring))
    jobs = job_numbers([reading.header for _, reading in with_ring])
    pieces = [
        _columns(file, reading.header, job, records[records["operation"] != STEP])
        for (file, reading), job, records in zip(with_ring, jobs, found, strict=True)
    ]
    events = _events(pieces, with_ring[0][1].header.operations)
    if not len(events):
        raise UnavailableError("no rank has recorded a collective")
    errors = {reading.header.rank: reading.header.clock_error_ns for _, reading in with_ring}
    waited = waiting(events, errors, absent=len(set(ranks).difference(errors)))
    if not waited.matched:
        raise UnavailableError(
            "the ranks' clocks disagree"
            if waited.clock_conflicts
            else f"no collective is among the newest {count} calls of each of its ranks"
        )
    in_all = sum(row.waiting_seconds + row.transfer_seconds for row in waited.operations)
    return LateNow(
        matched=waited.matched,
        seconds=_span_seconds(events),
        waiting_share=sum(row.waiting_seconds for row in waited.operations) / in_all if in_all else 0.0,
        clock_error_seconds=waited.clock_error_seconds,
        late_ranks=waited.late_ranks,
    )


def _newest(file: RankFile, reading: Reading, count: int) -> NDArray[Any]:
    try:
        return file.newest_records(reading.header, count)
    except OSError:  # `JobCounters.look` reports a file that stays unreadable
        return np.empty(0, RECORD)


def _columns(file: RankFile, header: Header, job: int, records: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Columns of `Events`; a communicator is its identity."""
    entries, index = file.communicators, records["communicator"]
    identities = communicator_identities(entries, header.rank, job)
    return {
        "rank": np.full(len(records), header.rank, np.int32),
        "operation": records["operation"].astype(np.uint8),
        "bytes": records["bytes"].astype(np.int64),
        "start_ns": records["start_ns"].astype(np.int64) + header.clock_offset_ns,
        "duration_ns": records["duration_ns"].astype(np.int64),
        "communicator_size": entries["size"][index].astype(np.int32),
        "bitwise": records["flags"] & BITWISE != 0,
        "thread": (records["buffer_and_thread"] >> np.uint64(BUFFER_BITS)).astype(np.uint16),
        "communicator": identities[index],
        "ordinal": records["ordinal"].copy(),
    }


def _events(pieces: list[dict[str, NDArray[Any]]], operations: tuple[str, ...]) -> Events:
    columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    identities, index = np.unique(columns.pop("communicator"), return_inverse=True)
    communicator = index.reshape(-1).astype(np.int32)
    return Events(operations, communicators=tuple(identities.tolist()), communicator=communicator, **columns)


def _span_seconds(events: Events) -> float:
    """The time that the newest calls of every rank cover."""
    ranks, of_rank = np.unique(events.rank, return_inverse=True)
    begins = np.full(len(ranks), np.iinfo(np.int64).max)
    np.minimum.at(begins, of_rank.reshape(-1), events.start_ns)
    return max(int((events.start_ns + events.duration_ns).max() - begins.max()), 0) / 1e9


def exposed_now(files: list[tuple[RankFile, Reading]]) -> ExposedNow:
    """The exposed communication of the newest marked steps of the lowest rank.

    Raises UnavailableError.
    """
    if not files:
        raise UnavailableError("no profile has a call")
    file, reading = min(files, key=lambda one: by_newest_steps(one[1].header))
    header = reading.header
    if not header.capacity:
        return _of_counters(files)
    records = _newest(file, reading, STEP_RECORDS)
    start = records["start_ns"].astype(np.int64)
    end = start + records["duration_ns"].astype(np.int64)
    threads = records["buffer_and_thread"] >> np.uint64(BUFFER_BITS)
    is_step = records["operation"] == STEP
    # Without the last mark: calls of other threads in the step before it may not have ended.
    newest = np.argsort(start[is_step], kind="stable")[-MOST_STEPS - 2 : -1]
    marks, marking_threads = start[is_step][newest], threads[is_step][newest]
    if len(marks) < 2:
        raise UnavailableError("the newest calls of the lowest rank contain no whole step")
    order = np.flatnonzero(~is_step)[np.argsort(start[~is_step], kind="stable")]
    is_blocking = np.array([not name.startswith("i") for name in header.operations])[records["operation"][order]]
    at_least = np.zeros(len(marks) - 1)
    for thread in np.unique(marking_threads):
        own = order[is_blocking & (threads[order] == thread)]
        at_least += covered_ns(start[own], end[own], marks) * (marking_threads[:-1] == thread)
    nanoseconds = float(marks[-1] - marks[0]) or 1.0
    return ExposedNow(
        basis="calls",
        steps=len(marks) - 1,
        step_seconds=nanoseconds / 1e9 / (len(marks) - 1),
        share_at_least=min(float(at_least.sum()) / nanoseconds, 1.0),
        share_at_most=min(float(covered_ns(start[order], end[order], marks).sum()) / nanoseconds, 1.0),
    )


def _of_counters(files: list[tuple[RankFile, Reading]]) -> ExposedNow:
    """The exposed communication of all steps so far, over all ranks. Raises UnavailableError."""
    steps = [reading.header.steps for _, reading in files if reading.header.steps is not None]
    if not steps:
        raise UnavailableError(NO_RING)
    sums = sum(steps[1:], steps[0])
    return ExposedNow(
        basis="counters",
        steps=max(one.steps for one in steps),
        step_seconds=sums.duration_ns / sums.steps / 1e9,
        share_at_least=min(sums.blocking_ns / sums.duration_ns, 1.0),
        share_at_most=min(sums.collectives_ns / sums.duration_ns, 1.0),
    )
