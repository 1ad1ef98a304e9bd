"""Compares two runs of the same work: communication time by message size before and after, and the
gain with its confidence interval.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, RunRecord, ranks_in_words
from hvscale.core.statistics import percentile_interval, resampled_means
from hvscale.core.units import human_bytes
from hvscale.profiling.analyze.breakdown import NO_COLLECTIVE, read_recording, require_complete, require_profile
from hvscale.profiling.analyze.bytes_per_step import INFERRED, known_or_inferred_edges, split_by_bytes
from hvscale.profiling.analyze.grouping import Bins, bin_warnings, parse_bins
from hvscale.profiling.analyze.steps import LoggedSteps, edges_by_rank, gradient_messages, read_step_log
from hvscale.profiling.read.counters import Totals
from hvscale.profiling.read.events import Events, Part, Recording, Reducer
from hvscale.profiling.read.passes import PIECE, in_order, in_order_of_start, pieces, reduce_messages

GainVerdict = Literal["less", "more", "no difference", "unknown"]
Floats = NDArray[np.float64]

SAME_WORK_TOLERANCE = 0.01  # maximum difference of two runs of the same work, as a fraction of bytes or calls
# Neighbouring steps are correlated, so the bootstrap draws blocks of steps. Fewer than MIN_BLOCKS
# blocks with calls give no interval: too many draws would miss all of them.
BLOCKS, MIN_BLOCKS = 64, 6
CALL_BLOCKS = 16  # without steps: few blocks, so that all have nearly the same number of calls
LOCAL_CLOCK_SLACK = timedelta(seconds=1)  # on the host that started the run
REMOTE_CLOCK_SLACK = timedelta(minutes=1)


class Gain(BaseModel):
    """Seconds before and after, and the percentage saved.

    The gain is negative for a loss, and None for 0 seconds before. `gain_percent_low` and
    `gain_percent_high` bound its 95 % bootstrap interval over steps; None with too few steps that
    have such calls.
    """

    seconds_before: float
    seconds_after: float
    gain_percent: float | None
    gain_percent_low: float | None
    gain_percent_high: float | None
    verdict: GainVerdict


class ComparisonRow(Gain):
    """The messages of one operation with sizes in one bin, both limits inclusive.

    Calls and seconds are sums over ranks.
    """

    operation: str
    bytes_min: int
    bytes_max: int | None
    calls_before: float
    calls_after: float


class Comparison(VersionedDocument):
    """The document that `hvscale compare --json` prints (by alias).

    `per`: the unit of the calls and seconds in `rows` and `total`.
    """

    schema_: Literal["hvscale/compare/1"] = "hvscale/compare/1"
    run_before: str
    run_after: str
    library_before: str = ""
    library_after: str = ""
    np: int
    per: Literal["step", "run"]
    steps_before: int | None
    steps_after: int | None
    rows: list[ComparisonRow]
    total: ComparisonRow
    step: Gain | None  # for the whole duration of a step, if the runs have steps
    incomplete: str | None = None  # why messages of the runs are missing
    warnings: list[str]


@dataclass
class ProfiledRun:
    """A run with its recording and its steps."""

    path: str
    record: RunRecord
    recording: Recording
    log: LoggedSteps | None
    edges_ns: NDArray[np.int64] | None
    bytes_per_step: float | None = None  # sent by each rank, if `edges_ns` was derived from them
    inferred_steps: bool = False  # from the messages, as the program neither marks nor logs its steps

    @property
    def has_steps(self) -> bool:
        return self.edges_ns is not None if self.recording.has_calls else bool(self.recording.step_sums)


def read_profiled_run(
    run: RunFolder,
    *reducers: Reducer[Any],
    counters_suffice: bool = False,
    ranks: Collection[int] | None = None,
) -> ProfiledRun:
    """Reads a run, or some of its `ranks`; its messages go to `reducers` as in `read_recording`.

    `counters_suffice`: accepts a run whose calls were only counted.

    Raises RequestError if the run cannot be read, has no messages, or mixes files of several runs.
    Raises UntrustedError if it has no messages because its profile could not be written.
    """
    record, recording, log = run.read(), read_recording(run, *reducers, ranks=ranks), read_step_log(run)
    if not recording.has_calls and not counters_suffice:
        raise RequestError(
            f"{run.path} has no single calls, only counters: record it again with `hvscale profile --record calls`"
        )
    if not len(recording.events) and recording.totals is None:
        require_profile(run, recording)
        require_complete(run, recording.incomplete)
        if recording.ranks:
            raise RequestError(f"the profile of {run.path} has no collective: `hvscale breakdown` shows what it has")
        raise RequestError(f"{run.path}: {NO_COLLECTIVE}")
    reject_files_of_another_run(run, record, recording)
    edges_ns, inferred = known_or_inferred_edges(recording, log)
    return ProfiledRun(str(run.path), record, recording, log, edges_ns, inferred_steps=inferred)


def reject_files_of_another_run(run: RunFolder, record: RunRecord, recording: Recording) -> None:
    """Raises RequestError if the messages of most ranks lie outside the time of the run.

    Warns if those of a few do: their clock is wrong.
    """
    outside = set()
    hosts = {end.rank: end.host for end in record.ranks}
    for part in recording.events.parts:
        times = part.times()
        times = times[times[:, 0] > 0]
        if not len(times):
            continue
        slack = LOCAL_CLOCK_SLACK if hosts.get(part.rank) == record.host.name else REMOTE_CLOCK_SLACK
        first, last = times[:, 1].min() / 1e9, times[:, 2].max() / 1e9
        early = first + slack.total_seconds() < record.started_at.timestamp()
        late = record.ended_at is not None and last - slack.total_seconds() > record.ended_at.timestamp()
        if early or late:
            outside.add(part.rank)
    if outside and 2 * len(outside) >= len(recording.recorded):
        raise RequestError(
            f"{run.path} mixes files of different runs: rank {min(outside)}'s messages were not sent during this run"
        )
    if outside:
        recording.warnings.append(
            f"by the clocks of {ranks_in_words(sorted(outside))}, their messages were not sent during this run: the clocks "
            "are wrong, or the files belong to another run"
        )


def compare(
    before: RunFolder, after: RunFolder, bins: str = "study", bytes_per_step: float | None = None
) -> Comparison:
    """Compares two runs of the same work: per step if both have steps, else in total.

    `bins` as in `parse_bins`. `bytes_per_step`: sent by each rank (`find_bytes_per_step`); divides
    two runs that neither mark nor log their steps into steps.

    Raises RequestError if a run cannot be read, or if the two did different work.
    """
    runs = [read_profiled_run(run, counters_suffice=True) for run in (before, after)]
    if bytes_per_step is not None and not any(run.has_steps and not run.inferred_steps for run in runs):
        runs = [divide_into_steps(run, bytes_per_step) for run in runs]
    return compare_profiled_runs(runs[0], runs[1], parse_bins(bins))


def divide_into_steps(run: ProfiledRun, bytes_per_step: float) -> ProfiledRun:
    """The run with a step edge each time its lowest rank has sent `bytes_per_step` bytes.

    Unchanged if the rank sent too few messages.
    """
    _, ends_ns = split_by_bytes(run.recording, bytes_per_step)
    if len(ends_ns) < 2:
        return run
    return replace(run, edges_ns=ends_ns, bytes_per_step=bytes_per_step, inferred_steps=False)


def compare_profiled_runs(before: ProfiledRun, after: ProfiledRun, bins: Bins) -> Comparison:
    """`compare` for runs already read."""
    before, after, left_out = _of_common_ranks(*_with_comparable_steps(before, after))
    by_step = before.has_steps and after.has_steps
    for run, other in ((before, after), (after, before)):
        if run.recording.overwritten and not by_step:
            raise RequestError(_why_calls_are_missed(run, other))
    names = tuple(sorted({*before.recording.events.operations, *after.recording.events.operations}))
    tables = [_Table(run, bins, names, by_step) for run in (before, after)]
    differences = _differences(before, after, tables, names, by_step)
    if differences:
        raise RequestError(f"{before.path} and {after.path} did different work: {'; '.join(differences)}")
    first, second = tables
    keys = np.flatnonzero(first.calls + second.calls)
    rows = [_row(first, second, int(key), bins, names) for key in keys]
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row.operation] = seconds.get(row.operation, 0.0) + row.seconds_before
    total = _gain(first.seconds.sum(axis=1), first.weights, second.seconds.sum(axis=1), second.weights)
    return Comparison(
        run_before=before.path,
        run_after=after.path,
        library_before=before.recording.library,
        library_after=after.recording.library,
        np=before.record.np,
        per="step" if by_step else "run",
        steps_before=first.steps,
        steps_after=second.steps,
        rows=sorted(rows, key=lambda row: (-seconds[row.operation], row.operation, row.bytes_min)),
        total=ComparisonRow(
            operation="total",
            bytes_min=0,
            bytes_max=None,
            calls_before=float(first.calls.sum()),
            calls_after=float(second.calls.sum()),
            **dict(total),
        ),
        step=_whole_step(before, after),
        incomplete="; ".join(f"{run.path}: {text}" for run in (before, after) if (text := run.recording.incomplete))
        or None,
        warnings=[*left_out, *_warnings(before, after, first, second, by_step)],
    )


def _why_calls_are_missed(run: ProfiledRun, other: ProfiledRun) -> str:
    """Why two runs cannot be compared of which `run` lost single calls, and not both have steps."""
    without = other if run.has_steps else run
    lost, ring = f"{run.path} lost {run.recording.overwritten} single calls", "a larger ring (--env HVPROF_MIB=N)"
    if without.recording.step_sums:
        return f"{lost}, and no marked step of {without.path} is in all its rings: record it again with {ring}"
    marking = " or mark its steps" if without.recording.source == "hvprof" else ""
    return (
        f"{lost}, and {without.path} has no step marks to compare the others by: record it again with {ring}{marking}"
    )


def _with_comparable_steps(before: ProfiledRun, after: ProfiledRun) -> tuple[ProfiledRun, ProfiledRun]:
    """The runs, without inferred steps if those do not send as much as the other run's."""
    if not (before.inferred_steps or after.inferred_steps):
        return before, after
    sent = [_sent_per_step(run) for run in (before, after)]
    if sent[0] is not None and sent[1] is not None and not _differ((sent[0], sent[1]), max(sent[0], sent[1])):
        return before, after
    before, after = (
        replace(run, edges_ns=None, inferred_steps=False) if run.inferred_steps else run for run in (before, after)
    )
    return before, after


def _sent_per_step(run: ProfiledRun) -> float | None:
    """The bytes that the lowest rank sends per step; None if its steps are unknown."""
    if run.edges_ns is None:
        return None
    end_ns, size, _ = gradient_messages(run.recording)
    in_steps = (end_ns > run.edges_ns[0]) & (end_ns <= run.edges_ns[-1])
    return float(size[in_steps].sum()) / (len(run.edges_ns) - 1)


def _of_common_ranks(before: ProfiledRun, after: ProfiledRun) -> tuple[ProfiledRun, ProfiledRun, list[str]]:
    """The runs without the ranks that only one of them has recorded, and a warning about these.

    Unchanged and without a warning if no rank would be left.
    """
    ranks = [set(run.recording.ranks) for run in (before, after)]
    common, only_one = ranks[0] & ranks[1], ranks[0] ^ ranks[1]
    comparable = before.record.np == after.record.np and before.recording.source == after.recording.source
    if not (common and only_one and comparable):
        return before, after, []
    before, after = (replace(run, recording=run.recording.of_ranks(common)) for run in (before, after))
    text = f"the comparison leaves out {ranks_in_words(sorted(only_one))}, which only one of the runs has recorded"
    return before, after, [text]


class _Table(Reducer["_TablePiece"]):
    """The messages of a run by operation and bin (K columns), per step or over the run.

    `seconds` (n, K): one row for each of n blocks of consecutive steps (or calls). `weights` (n):
    the number of steps in each block (or 1/n of the run).
    """

    def __init__(self, run: ProfiledRun, bins: Bins, names: tuple[str, ...], by_step: bool) -> None:
        recording = run.recording
        self.bins, self.columns = bins, len(names) * len(bins)
        self.code = np.array([names.index(name) for name in recording.events.operations], np.int64)
        if recording.has_calls or recording.totals is None:
            self._add_calls(run, by_step)
        else:
            self._add_counters(recording, recording.totals, by_step)
        self.horovod = recording.source != "hvprof" or self.found.bitwise_calls > 0
        scale, units = recording.ranks_per_event, self.weights.sum()
        self.seconds: Floats = self.found.duration_ns / 1e9 * scale
        self.calls: Floats = self.found.calls * scale / units
        per_operation = (len(names), len(bins))
        self.operation_calls = self.calls.reshape(per_operation).sum(axis=1)
        # Bitwise reductions are Horovod's own. Their number depends on time, not on work.
        moved = self.found.moved * scale / units
        self.operation_bytes = moved.reshape(per_operation).sum(axis=1)

    def _add_calls(self, run: ProfiledRun, by_step: bool) -> None:
        recording = run.recording
        self.edges = edges_by_rank(recording, run.edges_ns) if by_step and run.edges_ns is not None else None
        self.steps = len(run.edges_ns) - 1 if by_step and run.edges_ns is not None else None
        self.blocks = CALL_BLOCKS if self.steps is None else min(BLOCKS, self.steps)
        self.found = _TablePiece.zero(self.blocks, self.columns)
        if self.edges is not None:
            reduce_messages(recording.events, self)
        else:
            for _, piece in in_order(lambda rank: self._of_rank(recording, rank), recording.ranks):
                self.found += _require(piece)
        if self.steps is None:
            self.weights: Floats = np.full(self.blocks, 1 / self.blocks)
        elif run.bytes_per_step is not None:
            # A step may end inside a message, which counts in full.
            self.weights = self.found.moved_in_block / (run.bytes_per_step * len(recording.ranks))
        else:
            self.weights = np.bincount(np.arange(self.steps) * self.blocks // self.steps).astype(np.float64)

    def _add_counters(self, recording: Recording, totals: Totals, by_step: bool) -> None:
        """Adds the counters as one block.

        Calls after the last mark count as the part of a step that they moved.
        """
        self.steps, self.weights = None, np.ones(1)
        chosen = np.ones(len(totals), np.bool_)
        if by_step:
            sums = list(recording.step_sums.values())
            steps = float(np.mean([one.steps for one in sums]))
            chosen = totals.in_steps
            counted = np.isin(totals.rank, list(recording.step_sums)) & chosen & ~totals.bitwise
            ended = sum(one.collectives_bytes for one in sums)
            begun = float(totals.bytes[counted].sum()) / ended if ended else 1.0
            self.steps, self.weights = round(steps), np.array([steps * begun])
        size = self.bins.index(totals.bytes // np.maximum(totals.calls, 1))
        key = (self.code[totals.operation] * len(self.bins) + size)[chosen]
        moved = np.where(totals.bitwise, 0, totals.bytes)[chosen]
        self.found = _TablePiece(
            _weighted(key, totals.duration_ns[chosen], self.columns)[None, :],
            _weighted(key, totals.calls[chosen], self.columns).astype(np.int64),
            _weighted(key, moved, self.columns),
            np.array([moved.sum()], np.float64),
            int(totals.calls[chosen & totals.bitwise].sum()),
        )

    def reduce(self, part: Part, events: Events) -> "_TablePiece":
        if self.edges is None or self.steps is None:
            raise TypeError("the blocks of calls need all messages of a rank")
        step = np.searchsorted(self.edges[part.rank], events.start_ns, side="right") - 1
        inside = (step >= 0) & (step < self.steps)
        events = events if inside.all() else events.take(inside)
        return self._piece(events, self._key(events), step[inside] * self.blocks // self.steps)

    def add(self, part: Part, found: "_TablePiece") -> None:
        self.found += found

    def _of_rank(self, recording: Recording, rank: int) -> "_TablePiece":
        """The calls of each operation and bin, in order of time, divided evenly into blocks."""
        parts = [part for part in recording.events.parts if part.rank == rank]
        ordered: Iterable[Events] = in_order_of_start(parts)
        if sum(part.slots for part in parts) <= PIECE:
            every: Iterable[Events] = (ordered := list(ordered))
        else:
            every = chain.from_iterable(pieces(part, detail=False) for part in parts)
        found, counts = _TablePiece.zero(self.blocks, self.columns), np.zeros(self.columns, np.int64)
        for events in every:
            counts += np.bincount(self._key(events), minlength=self.columns)
        before = np.zeros(self.columns, np.int64)
        for events in ordered:
            key = self._key(events)
            number = before[key] + _number_in_group(key)
            found += self._piece(events, key, number * self.blocks // counts[key])
            before += np.bincount(key, minlength=self.columns)
        return found

    def _key(self, events: Events) -> NDArray[np.int64]:
        return self.code[events.operation] * len(self.bins) + self.bins.index(events.bytes)

    def _piece(self, events: Events, key: NDArray[np.int64], block: NDArray[np.int64]) -> "_TablePiece":
        sizes = np.where(events.bitwise, 0, events.bytes)
        flat = _weighted(block * self.columns + key, events.duration_ns, self.blocks * self.columns)
        return _TablePiece(
            flat.reshape(self.blocks, self.columns),
            np.bincount(key, minlength=self.columns),
            _weighted(key, sizes, self.columns),
            _weighted(block, sizes, self.blocks),
            int(np.count_nonzero(events.bitwise)),
        )


@dataclass
class _TablePiece:
    """What some messages contribute to a `_Table`: sums, which add up.

    `duration_ns` is by block and column, `calls` and `moved` (bytes) by column, `moved_in_block` by
    block.
    """

    duration_ns: Floats
    calls: NDArray[np.int64]
    moved: Floats
    moved_in_block: Floats
    bitwise_calls: int

    @classmethod
    def zero(cls, blocks: int, columns: int) -> "_TablePiece":
        return cls(np.zeros((blocks, columns)), np.zeros(columns, np.int64), np.zeros(columns), np.zeros(blocks), 0)

    def __iadd__(self, other: "_TablePiece") -> "_TablePiece":
        for name in ("duration_ns", "calls", "moved", "moved_in_block", "bitwise_calls"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


def _weighted(groups: NDArray[np.int64], values: NDArray[np.int64], length: int) -> Floats:
    return np.bincount(groups, weights=values, minlength=length).astype(np.float64)


def _require(found: "_TablePiece | RequestError") -> "_TablePiece":
    if isinstance(found, RequestError):
        raise found
    return found


def _number_in_group(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each call among those of its group, from 0."""
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    first = np.cumsum(counts) - counts
    number = np.empty(len(group), np.int64)
    number[order] = np.arange(len(group)) - first[group[order]]
    return number


def _differences(
    before: ProfiledRun, after: ProfiledRun, tables: list[_Table], names: tuple[str, ...], by_step: bool
) -> list[str]:
    """The differences between the work of two runs, one phrase each.

    Another fusion buffer changes the sizes and the number of messages, but not the bytes of each
    operation. So Horovod's runs are compared by bytes only, others also by calls.
    """
    found = []
    if before.record.np != after.record.np:
        found.append(f"np {before.record.np} against {after.record.np}")
    elif before.recording.source == after.recording.source and before.recording.ranks != after.recording.ranks:
        ranks = [ranks_in_words(run.recording.ranks) for run in (before, after)]
        found.append(f"profiles of {ranks[0]} against {ranks[1]}")
    images = [known for run in (before, after) if (known := _images_per_step(run.log)) is not None]
    if by_step and len(images) == 2 and _differ((images[0], images[1]), max(images)):
        found.append(f"{images[0]:g} images per step against {images[1]:g}")
    first, second = tables
    unit = "step" if by_step else "run"
    all_bytes = max(table.operation_bytes.sum() for table in tables)
    horovod = any(table.horovod for table in tables)
    for index, name in enumerate(names):
        sizes = first.operation_bytes[index], second.operation_bytes[index]
        calls = first.operation_calls[index], second.operation_calls[index]
        if _differ(sizes, all_bytes):
            texts = [human_bytes(size) for size in sizes]
            if texts[0] == texts[1]:
                texts = [f"{size:.0f} B" for size in sizes]
            found.append(f"{name} of {texts[0]} per {unit} against {texts[1]}")
        elif not horovod and _differ(calls, max(calls)):
            found.append(f"{calls[0]:g} {name} calls per {unit} against {calls[1]:g}")
    return found


def _differ(pair: tuple[float, float], reference: float) -> bool:
    return abs(pair[0] - pair[1]) > SAME_WORK_TOLERANCE * reference


def _images_per_step(log: LoggedSteps | None) -> float | None:
    """The median over the steps; None if the run did not record images."""
    known = log.images[~np.isnan(log.images)] if log is not None else np.empty(0)
    return float(np.median(known)) if len(known) else None


def _row(before: _Table, after: _Table, key: int, bins: Bins, names: tuple[str, ...]) -> ComparisonRow:
    operation, bin_index = divmod(key, len(bins))
    bytes_min, bytes_max = bins.limits(bin_index)
    gain = _gain(before.seconds[:, key], before.weights, after.seconds[:, key], after.weights)
    return ComparisonRow(
        operation=names[operation],
        bytes_min=bytes_min,
        bytes_max=bytes_max,
        calls_before=float(before.calls[key]),
        calls_after=float(after.calls[key]),
        **dict(gain),
    )


def _gain(before: Floats, weights_before: Floats, after: Floats, weights_after: Floats) -> Gain:
    """The gain, from the seconds and the weight of each block."""
    seconds_before = float(before.sum() / weights_before.sum())
    seconds_after = float(after.sum() / weights_after.sum())
    gain = low = high = None
    verdict: GainVerdict = "unknown"
    if seconds_before > 0:
        gain = 100 * (1 - seconds_after / seconds_before)
        # None at all are as certain as many.
        blocks_after = np.count_nonzero(after) or len(after)
        if min(np.count_nonzero(before), blocks_after) >= MIN_BLOCKS:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = resampled_means(after, weights_after, 1) / resampled_means(before, weights_before, 0)
            # Infinite ratios are large losses. No limit is infinite: if 6 of 64 blocks have calls,
            # only 0.2 % of the draws have none.
            ratios = ratios[~np.isnan(ratios)]
            low, high = percentile_interval(100 * (1 - ratios))
            verdict = "no difference" if low <= 0 <= high else "less" if low > 0 else "more"
    return Gain(
        seconds_before=seconds_before,
        seconds_after=seconds_after,
        gain_percent=gain,
        gain_percent_low=low,
        gain_percent_high=high,
        verdict=verdict,
    )


def _whole_step(before: ProfiledRun, after: ProfiledRun) -> Gain | None:
    if not before.has_steps or not after.has_steps:
        return None
    return _gain(*_step_blocks(before), *_step_blocks(after))


def _step_blocks(run: ProfiledRun) -> tuple[Floats, Floats]:
    """The seconds of the lowest rank's steps in blocks, and the steps in each block."""
    if run.edges_ns is None:
        sums = run.recording.step_sums[min(run.recording.step_sums)]
        return np.array([sums.duration_ns / 1e9]), np.array([float(sums.steps)])
    seconds = np.diff(run.edges_ns) / 1e9
    steps = len(seconds)
    block = np.arange(steps) * min(BLOCKS, steps) // steps
    return np.bincount(block, weights=seconds).astype(np.float64), np.bincount(block).astype(np.float64)


def _warnings(before: ProfiledRun, after: ProfiledRun, first: _Table, second: _Table, by_step: bool) -> list[str]:
    found = [f"{run.path}: {text}" for run in (before, after) for text in run.recording.warnings]
    found += [run.log.warning for run in (before, after) if run.log is not None and run.log.warning is not None]
    if before.record.command != after.record.command:
        lost = [word for word in before.record.command if word not in after.record.command]
        new = [word for word in after.record.command if word not in before.record.command]
        texts = [" ".join(words) or "nothing" for words in (lost, new)]
        found.append(f"the commands differ ({texts[0]} against {texts[1]}), so the gain includes their effect")
    if before.recording.source != after.recording.source:
        found.append(
            f"the runs were recorded by {before.recording.source} and {after.recording.source}, which time different parts of "
            f"a call"
        )
    found += [f"{run.path}: {INFERRED}" for run in (before, after) if run.inferred_steps]
    if before.bytes_per_step is not None:
        found.append(
            f"the steps of these runs are unknown: a step is taken to be {human_bytes(before.bytes_per_step)} sent by each rank"
        )
    counted = [run.path for run in (before, after) if not run.recording.has_calls]
    for run, table in ((before, first), (after, second)):
        if not run.recording.has_calls and run.recording.totals is not None:
            found += [f"{run.path}: {text}" for text in bin_warnings([run.recording.totals], table.bins)]
    if counted:
        found.append(
            f"no intervals, because the calls of {' and '.join(counted)} were only counted: `hvscale profile --record calls` "
            "records them"
        )
    if not by_step:
        interval = "" if counted else f", and the interval is over {CALL_BLOCKS} equal blocks of consecutive calls"
        found.append(f"the steps of these runs are unknown: times are for the whole run{interval}")
    elif (fewest := min(first.steps or 0, second.steps or 0)) < MIN_BLOCKS and not counted:
        found.append(f"{first.steps} and {second.steps} steps are too few for intervals, which need {MIN_BLOCKS}")
    elif fewest < 10:
        found.append(f"{first.steps} and {second.steps} steps are too few: the true intervals are wider")
    return found


def median_step(edges_ns: NDArray[np.int64]) -> int:
    """The index of the step with the median time (the lower of two middle ones)."""
    durations = np.diff(edges_ns)
    return int(np.argsort(durations, kind="stable")[math.ceil(len(durations) / 2) - 1])
