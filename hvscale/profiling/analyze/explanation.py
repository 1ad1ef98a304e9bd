"""Explains where communication time comes from: waiting, exposed communication, buffer reuse and
Horovod's phases.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np
from pydantic import BaseModel

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, RunRecord, ranks_in_words
from hvscale.core.units import GIB, human_bytes, human_seconds
from hvscale.profiling.analyze.breakdown import (
    Breakdown,
    RankTables,
    read_recording,
    require_profile,
    unused_horovod_settings,
)
from hvscale.profiling.analyze.buffer_reuse import HitRate, hit_rates
from hvscale.profiling.analyze.bytes_per_step import INFERRED, known_or_inferred_edges
from hvscale.profiling.analyze.collectives import CollectiveAccumulator, match_collectives
from hvscale.profiling.analyze.exposed import (
    ExposedCommunication,
    Exposure,
    exposure_of_counters,
    exposure_without_calls,
)
from hvscale.profiling.analyze.grouping import parse_bins
from hvscale.profiling.analyze.horovod_phases import HorovodPhases, horovod_phases
from hvscale.profiling.analyze.rank_comparison import ByRank, compare_ranks
from hvscale.profiling.analyze.ranks_and_nodes import RankSums
from hvscale.profiling.analyze.steps import LoggedSteps, read_step_log
from hvscale.profiling.analyze.waiting import Waiting, find_wrong_clocks, waiting
from hvscale.profiling.read.events import HorovodMessages, Recording
from hvscale.profiling.read.passes import latest
from hvscale.profiling.read.profile_file import RECORD, record_bytes
from hvscale.profiling.read.rank_nodes import UNKNOWN_NODE, node_of_each_rank
from hvscale.profiling.read.sources.horovod_timeline import read_messages

# Larger profiles are explained only on request: the table of 4 GiB takes 12 s on two cores,
# with its explanation 43 s (benchmarks/RESULTS.md, 512 ranks).
MAX_EXPLAINED_BYTES = 4 * GIB
EXPLAINED_NS_PER_CALL = 642
MAX_REPLAYED_MESSAGES = 500_000  # takes about a second for each cache size
MAX_LISTED_PAIRS = 3
ONLY_COUNTED = "calls were only counted (--record counters): record them with `hvscale profile --record calls`"
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


class ExplainedBreakdown(Explanation, ByRank, Breakdown):
    """What `hvscale breakdown --json` and `hvscale profile --json` print (by alias)."""


class _UnavailableError(Exception):
    """A part cannot be computed; the message is the reason."""


def explained_breakdown(run: RunFolder, bins: str = "study", explained: bool | None = None) -> ExplainedBreakdown:
    """The breakdown of a run and, if `explained`, its explanation.

    `explained` None: explains runs with at most MAX_EXPLAINED_BYTES of records. Raises as
    `breakdown` does, and RequestError if the run was not started to record a profile.
    """
    rank_tables = RankTables(parse_bins(bins))
    recording = read_recording(run, rank_tables)
    require_profile(run, recording)
    table = rank_tables.breakdown(recording, str(run.path))
    table.warnings += unused_horovod_settings(run.read(), table)
    size = _recorded_bytes(run)
    if explained or (explained is None and size <= MAX_EXPLAINED_BYTES):
        return explain_breakdown(run, recording, table)
    reason = "skipped because of --no-explain"
    if explained is None:
        minutes = size / RECORD.itemsize * EXPLAINED_NS_PER_CALL / 60e9
        reason = (
            f"the run recorded {human_bytes(size)}: `hvscale breakdown {shlex.quote(str(run.path))} --explain` adds them, in "
            f"about {max(1, round(minutes))} min on two cores"
        )
    explanation = _build_explanation({name: _UnavailableError(reason) for name in PARTS}, [], explained=False)
    return join(table, explanation, _by_rank(run, recording, table, None))


def explain_breakdown(
    run: RunFolder, recording: Recording, table: Breakdown, accumulators: Sequence[CollectiveAccumulator] = ()
) -> ExplainedBreakdown:
    """`table` with its explanation and its figures by rank; the arguments are as for `explain`."""
    sums = RankSums(rank_count(recording))
    explanation = explain(run, recording, [sums, *accumulators])
    return join(table, explanation, _by_rank(run, recording, table, sums if explanation.waiting else None))


def rank_count(recording: Recording) -> int:
    """The number of ranks for accumulators: spawned processes may have more than the job."""
    return max([recording.np, *(rank + 1 for rank in recording.ranks)])


def _by_rank(run: RunFolder, recording: Recording, table: Breakdown, sums: RankSums | None) -> ByRank:
    nodes = dict.fromkeys(recording.ranks, UNKNOWN_NODE) | node_of_each_rank(run, run.read())
    expected = set(nodes) if recording.ranks_per_event == 1 and recording.ranks else set()
    nodes = {rank: node for rank, node in nodes.items() if rank in expected or rank in recording.ranks}
    summed = None if sums is None else sums.result()
    return compare_ranks(table.rank_rows, recording.ranks, nodes, summed, recording.steps, recording.step_sums)


def _recorded_bytes(run: RunFolder) -> int:
    """The size of hvprof's records and Horovod's timeline.

    NCCL's calls do not count, because explaining them takes little time.
    """
    size = run.timeline.stat().st_size if run.timeline.is_file() else 0
    for path in run.hvprof.glob("rank-*.hvp"):
        with suppress(OSError, RequestError):
            size += record_bytes(path)
    return size


def join(table: Breakdown, explanation: Explanation, by_rank: ByRank) -> ExplainedBreakdown:
    """One document with the breakdown, its explanation and its figures by rank."""
    warnings = table.warnings + explanation.warnings
    return ExplainedBreakdown(**{**dict(table), **dict(explanation), **dict(by_rank), "warnings": warnings})


def explain(run: RunFolder, recording: Recording, accumulators: Sequence[CollectiveAccumulator] = ()) -> Explanation:
    """Explains a run in another pass over its messages, which `accumulators` share.

    A part that cannot be computed is null, with the reason in `unavailable`.

    Raises RequestError if run.json cannot be read.
    """
    log: LoggedSteps | RequestError | None
    messages: Iterable[HorovodMessages] | RequestError | None
    try:
        log = read_step_log(run)
    except RequestError as error:
        log = error
    try:
        messages = recording.horovod() if recording.horovod is not None else read_messages(run)
    except RequestError as error:
        messages = error
    return explain_recording(run.read(), recording, log, messages, accumulators)


def explain_recording(
    record: RunRecord,
    recording: Recording,
    log: LoggedSteps | RequestError | None,
    messages: Iterable[HorovodMessages] | RequestError | None,
    accumulators: Sequence[CollectiveAccumulator] = (),
) -> Explanation:
    """`explain` for data already read; an error stands for data that could not be read."""
    parts: dict[str, object] = {}
    warnings = [log.warning] if isinstance(log, LoggedSteps) and log.warning is not None else []
    exposure = _exposure(recording, None if isinstance(log, RequestError) else log, warnings)
    compute: tuple[Callable[[], object], ...] = (
        lambda: _waiting(recording, exposure, accumulators, warnings),
        lambda: _exposed(recording, exposure, log),
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


def _waiting(
    recording: Recording,
    exposure: Exposure | ExposedCommunication | None,
    accumulators: Sequence[CollectiveAccumulator],
    warnings: list[str],
) -> Waiting:
    """The waiting of a recording; the same pass also fills `exposure` and `accumulators`.

    Appends to `warnings` if clocks disagree.
    """
    _require_messages(recording)
    reducers = [exposure] if isinstance(exposure, Exposure) else []
    if not recording.events.detailed:
        match_collectives(recording.events, [], reducers)
        raise _UnavailableError(f"{recording.source} does not record which calls of different ranks belong together")
    # Spawned processes may have ranks that the job does not have.
    absent = len(set(range(recording.np)).difference(recording.ranks))
    wrong, seconds = find_wrong_clocks(recording.events, recording.clock_error_ns, absent)
    if wrong:
        warnings.append(
            f"the clocks of {ranks_in_words(wrong)} differ from the others' by at least {human_seconds(seconds)}: the "
            "waiting times leave these ranks out"
        )
    found = waiting(recording.events, recording.clock_error_ns, accumulators, reducers, absent, wrong)
    if found.clock_disagreements:
        warnings.append(_clock_warning(found))
    if not found.matched:
        raise _UnavailableError(
            "the ranks' clocks disagree"
            if found.clock_conflicts
            else "no collective of several ranks has a recorded call from each of its ranks"
        )
    if absent:
        warnings.append(
            f"the waiting times leave out {absent} of {recording.np} ranks, which have no profile: a collective for which one "
            "of them came last seems to have waited less"
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


def _exposure(
    recording: Recording, log: LoggedSteps | None, warnings: list[str]
) -> Exposure | ExposedCommunication | None:
    """What is known already, or what the calls will give; None if the steps are unknown.

    Appends to `warnings` if the steps were inferred.
    """
    known = exposure_without_calls(recording, log)
    if known is not None or not recording.has_calls or not len(recording.events):
        return known
    edges_ns, inferred = known_or_inferred_edges(recording, log)
    if inferred:
        warnings.append(INFERRED)
    if edges_ns is not None:
        return Exposure(recording, edges_ns)
    # After an overflow, no step may be in all rings; the counters have all steps.
    return exposure_of_counters(recording.step_sums) if recording.step_sums else None


def _exposed(
    recording: Recording, found: Exposure | ExposedCommunication | None, log: LoggedSteps | RequestError | None
) -> ExposedCommunication:
    damage = str(log) if isinstance(log, RequestError) else log and log.warning
    if found is None and damage:
        raise _UnavailableError(damage)
    if found is None and not recording.has_calls:
        raise _UnavailableError(f"{ONLY_COUNTED}, or mark steps with hvscale.profiling.step() or MPI_Pcontrol(1)")
    if found is None:
        marks = "mark them with hvscale.profiling.step() or MPI_Pcontrol(1), or write steps.jsonl"
        how = marks if recording.source == "hvprof" else f"write steps.jsonl ({recording.source} records no step marks)"
        raise _UnavailableError(f"the run has no steps: {how}")
    return found.result() if isinstance(found, Exposure) else found


def _buffer_reuse(recording: Recording) -> list[HitRate]:
    """The hit rates over the last messages, in order of time."""
    _require_messages(recording)
    if not recording.events.detailed:
        raise _UnavailableError(f"{recording.source} does not record message buffers")
    events = latest(recording.events, MAX_REPLAYED_MESSAGES)
    rates = hit_rates(events.rank.astype(np.int64), events.buffer, events.bytes)
    if not rates[0].messages:
        raise _UnavailableError("no message had a buffer")
    return rates


def _phases(messages: Iterable[HorovodMessages] | RequestError | None, record: RunRecord) -> HorovodPhases:
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
    if not recording.has_calls:
        raise _UnavailableError(ONLY_COUNTED)
    if not len(recording.events):
        raise _UnavailableError("no collective was recorded")
