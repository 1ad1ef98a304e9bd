"""Compares two runs of the same work: communication time by message size before and after, and the
gain with its confidence interval.
"""

import math
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.core.statistics import percentile_interval, resampled_means
from hvscale.core.units import human_bytes
from hvscale.profiling.analyze.breakdown import read_recording, require_complete
from hvscale.profiling.analyze.grouping import Bins, parse_bins
from hvscale.profiling.analyze.steps import StepLog, edges_by_rank, read_step_log, split_by_bytes, step_edges
from hvscale.profiling.read.events import Recording

Verdict = Literal["less", "more", "no difference", "unknown"]
Floats = NDArray[np.float64]

SAME_WORK_TOLERANCE = 0.01  # maximum difference of two runs of the same work, as a fraction of bytes or calls
# Neighbouring steps are correlated, so the bootstrap draws blocks of steps. Fewer than MIN_BLOCKS
# blocks give no interval.
BLOCKS, MIN_BLOCKS = 64, 3
CALL_BLOCKS = 16  # without steps: few blocks, so that all have nearly the same number of calls
LOCAL_CLOCK_SLACK = timedelta(seconds=1)  # on the host that started the run
REMOTE_CLOCK_SLACK = timedelta(minutes=1)


class Gain(BaseModel):
    """Seconds before and after, and the percentage saved.

    The gain is negative for a loss, and None for 0 seconds before. `gain_percent_low` and
    `gain_percent_high` bound its 95 % bootstrap interval over steps; None with too few steps.
    """

    seconds_before: float
    seconds_after: float
    gain_percent: float | None
    gain_percent_low: float | None
    gain_percent_high: float | None
    verdict: Verdict


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
    log: StepLog | None
    edges_ns: NDArray[np.int64] | None
    bytes_per_step: float | None = None  # sent by each rank, if `edges_ns` was derived from them


def read_profiled_run(run: RunFolder, detail: bool = False) -> ProfiledRun:
    """Reads a run; `detail` as in `read_recording`.

    Raises RequestError if the run cannot be read, has no messages, or mixes files of several runs.
    Raises UntrustedError if it has no messages because its profile could not be written.
    """
    record, recording, log = run.read(), read_recording(run, detail), read_step_log(run)
    if not len(recording.events):
        require_complete(run, recording.incomplete)
        raise RequestError(f"{run.path} has no profile: record one with `hvscale profile`")
    reject_files_of_another_run(run, record, recording)
    return ProfiledRun(str(run.path), record, recording, log, step_edges(recording, log))


def reject_files_of_another_run(run: RunFolder, record: RunRecord, recording: Recording) -> None:
    """Raises RequestError if a rank's messages lie outside the time of the run."""
    events = recording.events
    hosts = {end.rank: end.host for end in record.ranks}
    for rank in recording.ranks:
        start_ns = events.start_ns[events.rank == rank]
        if not len(start_ns):
            continue
        slack = LOCAL_CLOCK_SLACK if hosts.get(rank) == record.host.name else REMOTE_CLOCK_SLACK
        early = start_ns.min() / 1e9 < (record.started_at - slack).timestamp()
        late = record.ended_at is not None and start_ns.max() / 1e9 > (record.ended_at + slack).timestamp()
        if early or late:
            raise RequestError(
                f"{run.path} mixes files of different runs: rank {rank}'s messages were not sent during this run"
            )


def compare(
    before: RunFolder, after: RunFolder, bins: str = "study", bytes_per_step: float | None = None
) -> Comparison:
    """Compares two runs of the same work: per step if both have steps, else in total.

    `bins` as in `parse_bins`. `bytes_per_step`: sent by each rank (`find_bytes_per_step`); divides
    runs without known steps into steps.

    Raises RequestError if a run cannot be read, or if the two did different work.
    """
    runs = [read_profiled_run(run) for run in (before, after)]
    if bytes_per_step is not None and all(run.edges_ns is None for run in runs):
        runs = [divide_into_steps(run, bytes_per_step) for run in runs]
    return compare_profiled_runs(runs[0], runs[1], parse_bins(bins))


def divide_into_steps(run: ProfiledRun, bytes_per_step: float) -> ProfiledRun:
    """The run with a step edge each time its lowest rank has sent `bytes_per_step` bytes.

    Unchanged if the rank sent too few messages.
    """
    _, ends_ns = split_by_bytes(run.recording, bytes_per_step)
    return replace(run, edges_ns=ends_ns, bytes_per_step=bytes_per_step) if len(ends_ns) > 1 else run


def compare_profiled_runs(before: ProfiledRun, after: ProfiledRun, bins: Bins) -> Comparison:
    """`compare` for runs already read."""
    by_step = before.edges_ns is not None and after.edges_ns is not None
    for run in (before, after):
        if run.recording.overwritten and not by_step:
            raise RequestError(
                f"{run.path} lost {run.recording.overwritten} single calls and has no step marks to compare the others by: "
                f"record it again with a larger ring (--env HVPROF_MIB=N) or mark its steps"
            )
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
        warnings=_warnings(before, after, first, second, by_step),
    )


class _Table:
    """The messages of a run by operation and bin (K columns), per step or over the run.

    `seconds` (n, K): one row for each of n blocks of consecutive steps (or calls). `weights` (n):
    the number of steps in each block (or 1/n of the run).
    """

    def __init__(self, run: ProfiledRun, bins: Bins, names: tuple[str, ...], by_step: bool) -> None:
        events, columns = run.recording.events, len(names) * len(bins)
        code = np.array([names.index(name) for name in events.operations], np.int64)
        key = code[events.operation] * len(bins) + bins.index(events.bytes)
        if by_step and run.edges_ns is not None:
            self.steps: int | None = len(run.edges_ns) - 1
            step = np.full(len(key), -1)
            for rank, edges_ns in edges_by_rank(run.recording, run.edges_ns).items():
                of_rank = events.rank == rank
                step[of_rank] = np.searchsorted(edges_ns, events.start_ns[of_rank], side="right") - 1
            inside = (step >= 0) & (step < self.steps)
            blocks = min(BLOCKS, self.steps)
            block = step * blocks // self.steps
            self.weights = np.bincount(np.arange(self.steps) * blocks // self.steps).astype(np.float64)
            if run.bytes_per_step is not None:
                # A step may end inside a message, which counts in full.
                sent = np.bincount(block[inside], weights=(events.bytes * ~events.bitwise)[inside], minlength=blocks)
                self.weights = sent / (run.bytes_per_step * len(run.recording.ranks))
        else:
            self.steps, inside, blocks = None, np.ones(len(key), bool), CALL_BLOCKS
            block = _blocks_of_calls(key * (int(events.rank.max()) + 1) + events.rank, events.start_ns, blocks)
            self.weights = np.full(blocks, 1 / blocks)
        scale = run.recording.ranks_per_event
        key, block = key[inside], block[inside]
        duration, size, bitwise = events.duration_ns[inside], events.bytes[inside], events.bitwise[inside]
        flat = np.bincount(block * columns + key, weights=duration, minlength=blocks * columns)
        self.seconds: Floats = flat.reshape(blocks, columns) / 1e9 * scale
        units = self.weights.sum()
        self.calls: Floats = np.bincount(key, minlength=columns) * scale / units
        per_operation = (len(names), len(bins))
        self.operation_calls = self.calls.reshape(per_operation).sum(axis=1)
        # Bitwise reductions are Horovod's own. Their number depends on time, not on work.
        moved = np.bincount(key, weights=np.where(bitwise, 0, size), minlength=columns) * scale / units
        self.operation_bytes = moved.reshape(per_operation).sum(axis=1)


def _blocks_of_calls(group: NDArray[np.int64], start_ns: NDArray[np.int64], blocks: int) -> NDArray[np.int64]:
    """The block of each call: the calls of each group, in order of time, divided evenly."""
    order = np.lexsort((start_ns, group))
    counts = np.bincount(group)
    first = np.cumsum(counts) - counts
    ordered = group[order]
    block = np.empty(len(group), np.int64)
    block[order] = (np.arange(len(group)) - first[ordered]) * blocks // counts[ordered]
    return block


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
        ranks = [", ".join(map(str, run.recording.ranks)) for run in (before, after)]
        found.append(f"profiles of ranks {ranks[0]} against {ranks[1]}")
    images = _images_per_step(before.log), _images_per_step(after.log)
    if by_step and _differ(images, max(images)):
        found.append(f"{images[0]:g} images per step against {images[1]:g}")
    first, second = tables
    unit = "step" if by_step else "run"
    all_bytes = max(table.operation_bytes.sum() for table in tables)
    horovod = any(run.recording.source != "hvprof" or run.recording.events.bitwise.any() for run in (before, after))
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


def _images_per_step(log: StepLog | None) -> float:
    known = log.images[~np.isnan(log.images)] if log is not None else np.empty(0)
    return float(np.median(known)) if len(known) else 0.0


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
    verdict: Verdict = "unknown"
    if seconds_before > 0:
        gain = 100 * (1 - seconds_after / seconds_before)
        if min(len(before), len(after)) >= MIN_BLOCKS:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = resampled_means(after, weights_after, 1) / resampled_means(before, weights_before, 0)
            ratios = ratios[np.isfinite(ratios)]
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
    if before.edges_ns is None or after.edges_ns is None:
        return None
    blocks: list[Floats] = []
    for edges_ns in (before.edges_ns, after.edges_ns):
        seconds = np.diff(edges_ns) / 1e9
        steps = len(seconds)
        block = np.arange(steps) * min(BLOCKS, steps) // steps
        blocks += [np.bincount(block, weights=values).astype(np.float64) for values in (seconds, np.ones(steps))]
    return _gain(blocks[0], blocks[1], blocks[2], blocks[3])


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
    if before.bytes_per_step is not None:
        found.append(
            f"the steps of these runs are unknown: a step is taken to be {human_bytes(before.bytes_per_step)} sent by each rank"
        )
    if not by_step:
        found.append(
            f"the steps of these runs are unknown: times are for the whole run, and the interval is over {CALL_BLOCKS} equal "
            f"blocks of consecutive calls"
        )
    elif min(first.steps or 0, second.steps or 0) < 10:
        found.append(f"{first.steps} and {second.steps} steps are too few: the true intervals are wider")
    return found


def median_step(edges_ns: NDArray[np.int64]) -> int:
    """The index of the step with the median time (the lower of two middle ones)."""
    durations = np.diff(edges_ns)
    return int(np.argsort(durations, kind="stable")[math.ceil(len(durations) / 2) - 1])
