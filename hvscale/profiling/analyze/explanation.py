"""Explains where communication time comes from: waiting, exposed communication, buffer reuse and
Horovod's phases.
"""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.core.units import MIB, human_bytes, human_seconds
from hvscale.profiling.analyze.bins import parse_bins
from hvscale.profiling.analyze.breakdown import Breakdown, read_recording, tabulate
from hvscale.profiling.analyze.buffer_reuse import HitRate, hit_rates
from hvscale.profiling.analyze.exposed import ExposedCommunication, exposed_communication
from hvscale.profiling.analyze.horovod_phases import HorovodPhases, horovod_phases
from hvscale.profiling.analyze.step_times import StepLog, read_step_log, step_edges
from hvscale.profiling.analyze.waiting import Calls, Waiting, waiting
from hvscale.profiling.read.events import HorovodMessages, Recording
from hvscale.profiling.read.profile_file import RECORD, read_header
from hvscale.profiling.read.sources.horovod_timeline import read_messages

# Larger profiles are explained only on request: matching a million calls and replaying their
# buffers takes seconds.
EXPLAINED_BYTES = 64 * MIB
REPLAYED_MESSAGES = 500_000  # against each size of cache, about a second
SHOWN_PAIRS = 3
PARTS = ("waiting", "exposed_communication", "buffer_reuse", "horovod_phases")


class Explanation(BaseModel):
    """`unavailable` names each field that is null, and why; of all of them where the run was not
    `explained`.

    `warnings`: what puts the figures in doubt.
    """

    explained: bool
    waiting: Waiting | None
    exposed_communication: ExposedCommunication | None
    buffer_reuse: list[HitRate] | None
    horovod_phases: HorovodPhases | None
    unavailable: dict[str, str]
    warnings: list[str]


class ExplainedBreakdown(Breakdown, Explanation):
    """The document that `hvscale breakdown --json` and `hvscale profile --json` print, by alias."""


class _UnavailableError(Exception):
    """The message is the reason."""


def explained_breakdown(run: RunFolder, bins: str = "study", explained: bool | None = None) -> ExplainedBreakdown:
    """The table of a run and, if `explained`, what explains it; None: where its records take
    EXPLAINED_BYTES together at most.

    Raises what `breakdown` raises.
    """
    ranges = parse_bins(bins)
    small = explained is None and _recorded_bytes(run) <= EXPLAINED_BYTES
    recording = read_recording(run, detail=explained or small)
    table = tabulate(recording, ranges, str(run.path))
    if explained or small:
        return join(table, explain(run, recording))
    why = "left out, as asked for"
    if explained is None:
        why = f"the run has recorded more than {human_bytes(EXPLAINED_BYTES)}: use --explain to explain it anyway"
    return join(table, _document({name: _UnavailableError(why) for name in PARTS}, [], explained=False))


def _recorded_bytes(run: RunFolder) -> int:
    """The size of hvprof's records and Horovod's timeline. NCCL's calls are quick to explain and do
    not count.
    """
    size = run.timeline.stat().st_size if run.timeline.is_file() else 0
    for path in run.hvprof.glob("rank-*.hvp"):
        with suppress(OSError, RequestError), open_regular(path) as stream:
            header = read_header(path, stream)
            size += min(header.reserved_records, header.capacity) * RECORD.itemsize
    return size


def join(table: Breakdown, explanation: Explanation) -> ExplainedBreakdown:
    """Both in one document."""
    warnings = table.warnings + explanation.warnings
    return ExplainedBreakdown(**{**dict(table), **dict(explanation), "warnings": warnings})


def explain(run: RunFolder, recording: Recording) -> Explanation:
    """Explains a run; `recording` has been read in detail. What is unknown or unreadable is null,
    with the reason.

    Raises RequestError when run.json cannot be read.
    """
    log: StepLog | RequestError | None
    messages: HorovodMessages | RequestError | None
    try:
        log = read_step_log(run)
    except RequestError as error:
        log = error
    try:
        messages = recording.horovod or read_messages(run)
    except RequestError as error:
        messages = error
    return explain_recording(run.read(), recording, log, messages)


def explain_recording(
    record: RunRecord,
    recording: Recording,
    log: StepLog | RequestError | None,
    messages: HorovodMessages | RequestError | None,
) -> Explanation:
    """`explain` for what has been read; an error takes the place of what cannot be read."""
    parts: dict[str, object] = {}
    warnings = [log.warning] if isinstance(log, StepLog) and log.warning is not None else []
    find: tuple[Callable[[], object], ...] = (
        lambda: _waiting(recording, warnings),
        lambda: _exposed(recording, log),
        lambda: _buffer_reuse(recording),
        lambda: _phases(messages, record),
    )
    for name, part in zip(PARTS, find, strict=True):
        try:
            parts[name] = part()
        except _UnavailableError as why:
            parts[name] = why
    return _document(parts, warnings, explained=True)


def _document(parts: dict[str, object], warnings: list[str], explained: bool) -> Explanation:
    unavailable = {name: str(part) for name, part in parts.items() if isinstance(part, _UnavailableError)}
    known = {name: None if name in unavailable else part for name, part in parts.items()}
    return Explanation.model_validate(
        {**known, "explained": explained, "unavailable": unavailable, "warnings": warnings}
    )


def _waiting(recording: Recording, warnings: list[str]) -> Waiting:
    """Appends to `warnings` if clocks disagree."""
    events = recording.events
    _need_messages(recording)
    if len(events.ordinal) != len(events):
        raise _UnavailableError(f"{recording.source} does not record which calls of different ranks belong together")
    columns = (events.rank, events.operation, events.communicator, events.ordinal, events.communicator_size)
    more = (events.start_ns, events.duration_ns, events.bytes, events.bitwise)
    calls = Calls(*(column.astype(np.int64) for column in (*columns, *more)))
    found = waiting(calls, events.operations, recording.clock_error_ns)
    if found.clock_disagreements:
        warnings.append(_clock_warning(found))
    if not found.matched:
        why = (
            "the clocks disagree" if found.contradicted else "no collective of several ranks is known of all its ranks"
        )
        raise _UnavailableError(why)
    return found


def _clock_warning(found: Waiting) -> str:
    pairs = [
        f"{pair.rank} and {pair.late_rank} (by at least {human_seconds(pair.at_least_seconds)})"
        for pair in found.clock_disagreements
    ]
    if len(pairs) > SHOWN_PAIRS:
        pairs[SHOWN_PAIRS:] = [f"{len(pairs) - SHOWN_PAIRS} more pairs"]
    stated = found.clock_error_seconds
    error = "were not aligned" if stated is None else f"should agree to {human_seconds(stated)}"
    return (
        f"the clocks of ranks {', '.join(pairs)} disagree, and {error}: {found.contradicted} collectives that seem to end before "
        f"their last rank started are excluded from the waiting"
    )


def _exposed(recording: Recording, log: StepLog | RequestError | None) -> ExposedCommunication:
    edges_ns: NDArray[np.int64] | None = None
    if len(recording.events):
        edges_ns = step_edges(recording, None if isinstance(log, RequestError) else log)
    found = exposed_communication(recording, None if isinstance(log, RequestError) else log, edges_ns)
    damage = str(log) if isinstance(log, RequestError) else log and log.warning
    if found is None and damage:
        raise _UnavailableError(damage)
    if found is None:
        raise _UnavailableError(
            "the run tells no steps: mark them with hvscale.profiling.step() or MPI_Pcontrol(1), or write steps.jsonl"
        )
    return found


def _buffer_reuse(recording: Recording) -> list[HitRate]:
    """From the last messages, in order of time."""
    events = recording.events
    _need_messages(recording)
    if len(events.buffer) != len(events):
        raise _UnavailableError(f"{recording.source} does not record the buffers of messages")
    order = np.argsort(events.start_ns, kind="stable")[-REPLAYED_MESSAGES:]
    rates = hit_rates(events.rank[order].astype(np.int64), events.buffer[order], events.bytes[order])
    if not rates[0].messages:
        raise _UnavailableError("no message had a buffer")
    return rates


def _phases(messages: HorovodMessages | RequestError | None, record: RunRecord) -> HorovodPhases:
    if isinstance(messages, RequestError):
        raise _UnavailableError(str(messages))
    found = None if messages is None else horovod_phases(messages, record)
    if found is None:
        raise _UnavailableError(
            "Horovod wrote no timeline: record one with hvscale profile --timeline"
            if messages is None
            else "Horovod's timeline has no message"
        )
    return found


def _need_messages(recording: Recording) -> None:
    if not len(recording.events):
        raise _UnavailableError("no collective was recorded")
