"""Explains where communication time comes from: waiting, exposed communication, buffer reuse and
Horovod's phases.
"""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.core.units import MIB, human_bytes, human_seconds
from hvscale.profiling.analyze.breakdown import Breakdown, read_recording, tabulate
from hvscale.profiling.analyze.buffer_reuse import HitRate, hit_rates
from hvscale.profiling.analyze.exposed import ExposedCommunication, exposed_communication
from hvscale.profiling.analyze.grouping import parse_bins
from hvscale.profiling.analyze.horovod_phases import HorovodPhases, horovod_phases
from hvscale.profiling.analyze.steps import StepLog, read_step_log, step_edges
from hvscale.profiling.analyze.waiting import Calls, Waiting, waiting
from hvscale.profiling.read.events import HorovodMessages, Recording
from hvscale.profiling.read.profile_file import record_bytes
from hvscale.profiling.read.sources.horovod_timeline import read_messages

# Larger profiles are explained only on request: matching a million calls and replaying their
# buffers takes seconds.
MAX_EXPLAINED_BYTES = 64 * MIB
MAX_REPLAYED_MESSAGES = 500_000  # takes about a second for each cache size
MAX_LISTED_PAIRS = 3
PARTS = ("waiting", "exposed_communication", "buffer_reuse", "horovod_phases")


class Explanation(BaseModel):
    """What explains a breakdown. `unavailable` gives the reason for each part that is null.

    `explained`: false if no part was computed. `warnings`: reasons to doubt the figures.
    """

    explained: bool
    waiting: Waiting | None
    exposed_communication: ExposedCommunication | None
    buffer_reuse: list[HitRate] | None
    horovod_phases: HorovodPhases | None
    unavailable: dict[str, str]
    warnings: list[str]


class ExplainedBreakdown(Breakdown, Explanation):
    """What `hvscale breakdown --json` and `hvscale profile --json` print (by alias)."""


class _UnavailableError(Exception):
    """A part cannot be computed; the message is the reason."""


def explained_breakdown(run: RunFolder, bins: str = "study", explained: bool | None = None) -> ExplainedBreakdown:
    """The breakdown of a run and, if `explained`, its explanation.

    `explained` None: explains runs with at most MAX_EXPLAINED_BYTES of records. Raises as
    `breakdown` does.
    """
    ranges = parse_bins(bins)
    small = explained is None and _recorded_bytes(run) <= MAX_EXPLAINED_BYTES
    recording = read_recording(run, detail=explained or small)
    table = tabulate(recording, ranges, str(run.path))
    if explained or small:
        return join(table, explain(run, recording))
    reason = "skipped because of --no-explain"
    if explained is None:
        reason = f"the run recorded more than {human_bytes(MAX_EXPLAINED_BYTES)}: use --explain to explain it anyway"
    return join(table, _build_explanation({name: _UnavailableError(reason) for name in PARTS}, [], explained=False))


def _recorded_bytes(run: RunFolder) -> int:
    """The size of hvprof's records and Horovod's timeline.

    NCCL's calls do not count, because explaining them takes little time.
    """
    size = run.timeline.stat().st_size if run.timeline.is_file() else 0
    for path in run.hvprof.glob("rank-*.hvp"):
        with suppress(OSError, RequestError):
            size += record_bytes(path)
    return size


def join(table: Breakdown, explanation: Explanation) -> ExplainedBreakdown:
    """One document with the breakdown and its explanation."""
    warnings = table.warnings + explanation.warnings
    return ExplainedBreakdown(**{**dict(table), **dict(explanation), "warnings": warnings})


def explain(run: RunFolder, recording: Recording) -> Explanation:
    """Explains a run; `recording` must have been read with `detail`.

    A part that cannot be computed is null, with the reason in `unavailable`.

    Raises RequestError if run.json cannot be read.
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
    """`explain` for data already read; an error stands for data that could not be read."""
    parts: dict[str, object] = {}
    warnings = [log.warning] if isinstance(log, StepLog) and log.warning is not None else []
    compute: tuple[Callable[[], object], ...] = (
        lambda: _waiting(recording, warnings),
        lambda: _exposed(recording, log),
        lambda: _buffer_reuse(recording),
        lambda: _phases(messages, record),
    )
    for name, compute_part in zip(PARTS, compute, strict=True):
        try:
            parts[name] = compute_part()
        except _UnavailableError as error:
            parts[name] = error
    return _build_explanation(parts, warnings, explained=True)


def _build_explanation(parts: dict[str, object], warnings: list[str], explained: bool) -> Explanation:
    unavailable = {name: str(part) for name, part in parts.items() if isinstance(part, _UnavailableError)}
    available = {name: None if name in unavailable else part for name, part in parts.items()}
    return Explanation.model_validate(
        {**available, "explained": explained, "unavailable": unavailable, "warnings": warnings}
    )


def _waiting(recording: Recording, warnings: list[str]) -> Waiting:
    """The waiting of a recording; appends to `warnings` if clocks disagree."""
    events = recording.events
    _require_messages(recording)
    if len(events.ordinal) != len(events):
        raise _UnavailableError(f"{recording.source} does not record which calls of different ranks belong together")
    columns = (events.rank, events.operation, events.communicator, events.ordinal, events.communicator_size)
    more = (events.start_ns, events.duration_ns, events.bytes, events.bitwise)
    calls = Calls(*(column.astype(np.int64) for column in (*columns, *more)))
    found = waiting(calls, events.operations, recording.clock_error_ns)
    if found.clock_disagreements:
        warnings.append(_clock_warning(found))
    if not found.matched:
        raise _UnavailableError(
            "the ranks' clocks disagree"
            if found.clock_conflicts
            else "no collective of several ranks has a recorded call from each of its ranks"
        )
    return found


def _clock_warning(found: Waiting) -> str:
    pairs = [
        f"{pair.rank} and {pair.late_rank} (by at least {human_seconds(pair.at_least_seconds)})"
        for pair in found.clock_disagreements
    ]
    if len(pairs) > MAX_LISTED_PAIRS:
        pairs[MAX_LISTED_PAIRS:] = [f"{len(pairs) - MAX_LISTED_PAIRS} more pairs"]
    error_seconds = found.clock_error_seconds
    accuracy = "were not aligned" if error_seconds is None else f"should agree to {human_seconds(error_seconds)}"
    return (
        f"the clocks of ranks {', '.join(pairs)} disagree, but {accuracy}: the waiting times exclude "
        f"{found.clock_conflicts} collectives that seem to end before their last rank started"
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
            "the run has no steps: mark them with hvscale.profiling.step() or MPI_Pcontrol(1), or write steps.jsonl"
        )
    return found


def _buffer_reuse(recording: Recording) -> list[HitRate]:
    """The hit rates over the last messages, in order of time."""
    events = recording.events
    _require_messages(recording)
    if len(events.buffer) != len(events):
        raise _UnavailableError(f"{recording.source} does not record message buffers")
    order = np.argsort(events.start_ns, kind="stable")[-MAX_REPLAYED_MESSAGES:]
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
            "there is no Horovod timeline: record one with hvscale profile --timeline"
            if messages is None
            else "Horovod's timeline has no messages"
        )
    return found


def _require_messages(recording: Recording) -> None:
    if not len(recording.events):
        raise _UnavailableError("no collective was recorded")
