"""Finds the steps of a run on the clock of its recorded messages.

Sources, in order of preference: the program's step marks, steps.jsonl, and the period of what the
collectives send.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hvscale.core.errors import RequestError
from hvscale.core.line_files import damaged_lines, read_lines
from hvscale.core.numbers import StepImages, StepSeconds
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.read.events import Events, Recording
from hvscale.profiling.read.passes import pieces

# Maximum of the job's other all-reduces, as a fraction of a step's gradients.
TOLERANCE = 0.01
# The search for a period: points in time, minimum autocorrelation of a period, and minimum number
# of messages.
POINTS = 1 << 16
MIN_AUTOCORRELATION = 0.2
MIN_MESSAGES = 10
NEAR_BEST = 0.8  # of the best autocorrelation: the shortest such lag is the period, longer ones are its multiples
NEIGHBOURS = 1.5  # times a lag: up to here a better peak is the same period's
SAME_ORDER = 0.9  # autocorrelation of the sizes of messages whose order repeats
CHANCE = 5  # standard deviations of an autocorrelation that independent pauses rarely reach
CLOSE = 0.05  # below the best autocorrelation: as good
NOISE = 4  # standard deviations by which the best of many equal autocorrelations exceeds the first
SHORTEST_PAUSE = 1e-6  # seconds; shorter ones are alike
MAX_VARIATION = 0.3  # of the bytes sent in each period: standard deviation / mean


@dataclass(frozen=True)
class LoggedSteps:
    """The steps in steps.jsonl, in arrays of one length; NaN for a missing value.

    `warning` names the damaged lines, which are skipped. `lines` has the numbers of the others,
    from 1; None if no line is damaged.
    """

    seconds: NDArray[np.float64]
    images: NDArray[np.float64]
    exposed_seconds: NDArray[np.float64]
    warning: str | None = None
    lines: NDArray[np.int64] | None = None

    @property
    def steps(self) -> NDArray[np.int64]:
        """The number of each step, from 1."""
        return np.arange(1, len(self.seconds) + 1) if self.lines is None else self.lines


class _StepLine(BaseModel):
    """The fields that are read from one line, which any program may have written."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    seconds: StepSeconds
    images: StepImages | None = None
    communication_seconds: float | None = None


def read_step_log(run: RunFolder) -> LoggedSteps | None:
    """Reads steps.jsonl; None if the run has no steps.

    Skips damaged lines, and a last line without its end, which may still be being written.

    Raises RequestError if the file cannot be read.
    """
    try:
        found = read_lines(run.steps, _StepLine.model_validate_json)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RequestError(f"{run.steps} cannot be read: {error.strerror}") from error
    if not found.values and not found.damaged:
        return None
    rows = [(step.seconds, step.images, step.communication_seconds) for step in found.values]
    seconds, images, exposed_seconds = np.array(rows, np.float64).reshape(-1, 3).T  # None becomes NaN
    return LoggedSteps(
        seconds,
        images,
        exposed_seconds,
        warning=damaged_lines(run.steps, found.damaged),
        lines=np.array(found.numbers, np.int64) if found.damaged else None,
    )


def step_edges(recording: Recording, log: LoggedSteps | None) -> NDArray[np.int64] | None:
    """The start of the first step and the ends of all steps, in nanoseconds since 1970.

    None if they are unknown. Step marks (`hvscale.profiling.step`) are used as they are, except for
    a last step that was stopped, and steps of which a full ring lost messages; the step after the
    last mark has no end.

    Without marks, the durations in steps.jsonl are aligned with the messages. Every step
    all-reduces the same bytes of gradients, so the message that completes them ends before its step
    does. That gives a lower bound for the start of the first step; the largest bound is used.
    """
    names = recording.events.operations
    marks = recording.steps.get(min(recording.ranks, default=0), np.empty(0, np.int64))
    if len(marks) > 1:
        marks = _marks_in_all_rings(recording, marks) if recording.overwritten else marks
        return _without_stopped_step(recording, marks) if len(marks) > 1 else None
    # A missing duration would shift all later steps.
    if log is None or log.warning is not None or recording.overwritten or "allreduce" not in names:
        return None
    end_ns, size = _ends_and_bytes(
        recording, lambda events: (events.operation == names.index("allreduce")) & ~events.bitwise
    )
    sent = np.cumsum(size, dtype=np.float64)
    steps = len(log.seconds)
    if not len(sent) or not sent[-1]:
        return None
    bytes_per_step = sent[-1] / steps
    complete = np.searchsorted(sent, bytes_per_step * (np.arange(1, steps + 1) - TOLERANCE))
    since_first = np.concatenate([[0.0], np.cumsum(log.seconds)]) * 1e9
    start = float(np.max(end_ns[complete] - since_first[1:]))
    edges = (start + since_first).astype(np.int64)
    sent_in_step = np.bincount(np.searchsorted(edges, end_ns), weights=size, minlength=steps + 2)
    # Unless most steps contain their gradients, the job's all-reduces do not belong to its steps.
    plausible = np.abs(sent_in_step[1 : steps + 1] - bytes_per_step) < bytes_per_step / 2
    return edges if plausible.mean() > 0.9 else None


def _marks_in_all_rings(recording: Recording, marks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lowest rank's marks since the ring that begins last: a rank with more calls has fewer
    steps in its ring.
    """
    begins = {part.rank: int(part.times()[:, 1].min()) for part in recording.events.parts if part.times()[:, 0].any()}
    begins |= {rank: int(own[0]) for rank, own in recording.steps.items() if len(own)}
    return marks[int(np.argmin(np.abs(marks - max(begins.values())))) :]


def _without_stopped_step(recording: Recording, marks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lowest rank's marks up to the last step that the other ranks ended too.

    A job stopped between two ranks' marks leaves a step without some ranks' last messages. Ranks
    that end together are at most one step apart: one with fewer marks ended early, and the steps
    after that count.
    """
    one_fewer = any(len(own) == len(marks) - 1 for own in recording.steps.values())
    return marks[:-1] if one_fewer and len(marks) > 2 and not recording.overwritten else marks


def first_mark(recording: Recording, own_ns: NDArray[np.int64], edges_ns: NDArray[np.int64]) -> int:
    """Which of a rank's marks begins the first step.

    After an overflow each rank's ring holds its last steps, which may begin at different steps.
    """
    return int(np.argmin(np.abs(own_ns - edges_ns[0]))) if recording.overwritten and len(own_ns) else 0


def edges_by_rank(recording: Recording, edges_ns: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """The step edges of each rank, from its own marks.

    `edges_ns`: the edges of the lowest rank, used for steps that a rank did not mark. Ranks enter a
    step at different times: a fast rank sends its first messages before another's step begins.
    """
    found = {}
    for rank in recording.ranks:
        own = recording.steps.get(rank, edges_ns[:0])
        first = first_mark(recording, own, edges_ns)
        own = own[first : first + len(edges_ns)]
        found[rank] = np.maximum.accumulate(np.concatenate([own, edges_ns[len(own) :]]))
    return found


def gradient_messages(recording: Recording) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The end times of the lowest rank's collectives, ascending, and their bytes.

    Bitwise reductions, by which Horovod's ranks negotiate, are excluded.
    """
    return _ends_and_bytes(recording, lambda events: ~events.bitwise & (events.bytes > 0))


def _ends_and_bytes(
    recording: Recording, chosen: Callable[[Events], NDArray[np.bool_]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The end times of the lowest rank's chosen messages, ascending, and their bytes."""
    rank = min(recording.ranks, default=0)
    found = [(np.empty(0, np.int64),) * 2]
    for part in recording.events.parts:
        if part.rank == rank:
            for events in pieces(part, detail=False):
                kept = events.take(chosen(events))
                found.append((kept.start_ns + kept.duration_ns, kept.bytes))
    end_ns, size = (np.concatenate(columns) for columns in zip(*found, strict=True))
    order = np.argsort(end_ns, kind="stable")
    return end_ns[order], size[order]


def find_bytes_per_step(recording: Recording | None) -> tuple[float | None, str]:
    """The bytes that a rank sends per step, and the unit of a throughput derived from them.

    A step is one repetition of the messages' sizes and pauses, or, where their order does not
    repeat, one period of the bytes sent over time. Without either: (None, "MiB/s").
    """
    end_ns, size = gradient_messages(recording) if recording is not None else (np.empty(0, np.int64),) * 2
    if len(end_ns) < MIN_MESSAGES or end_ns[-1] == end_ns[0]:
        return None, "MiB/s"
    # Skip the first tenth: messages at the start belong to no step.
    kept = end_ns >= end_ns[0] + (end_ns[-1] - end_ns[0]) // 10
    times, size = (end_ns[kept] - end_ns[kept][0]) / 1e9, size[kept]
    if messages := _messages_per_step(times, size):
        steps = len(size) // messages
        return float(size[-steps * messages :].sum()) / steps, "steps/s"
    peaks = _autocorrelation_peaks(times, size)
    if not peaks:
        return None, "MiB/s"
    best = max(peaks, key=peaks.__getitem__)
    # The bytes sent in each period, by its lag.
    candidates = {
        lag: _bytes_by_period(times, size, lag * times[-1] / POINTS)
        for lag in peaks
        if lag < NEIGHBOURS * best and peaks[lag] >= NEAR_BEST * peaks[best]
    }
    lag = next((lag for lag, sent in candidates.items() if lag <= best and _are_steps(sent)), best)
    # Messages at equal distances have peaks one distance away from the step's.
    lag = max((one for one in candidates if lag <= one < NEIGHBOURS * lag), key=peaks.__getitem__)
    share = float(candidates[lag].mean())
    return (share, "steps/s") if share else (None, "MiB/s")


def _messages_per_step(times: NDArray[np.float64], size: NDArray[np.int64]) -> int | None:
    """The number of messages after which their sizes and pauses repeat; None if they do not.

    It is found also where the steps' times vary, which have no period in time then.
    """
    pauses = np.log(np.maximum(np.diff(times), SHORTEST_PAUSE))
    longest = len(pauses) // 4  # so that each repetition is seen several times
    if not longest:
        return None
    by_size, by_pause = (_autocorrelation(values, longest) for values in (np.log(size[1:]), pauses))
    if by_size.max() < SAME_ORDER:
        return None
    lags = np.flatnonzero(_near_best(by_size, len(pauses)))
    if np.ptp(pauses) > 0 and by_pause[lags].max() > CHANCE / math.sqrt(len(pauses)):
        lags = lags[_near_best(by_pause[lags], len(pauses))]
    return int(lags[0]) + 1 if lags[0] else None


def _near_best(autocorrelations: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """Which of the autocorrelations of `count` values are below the best by no more than noise."""
    best = float(autocorrelations.max())
    return autocorrelations >= best - max(NOISE * (1 - best**2) / math.sqrt(count), CLOSE)


def _autocorrelation(values: NDArray[np.float64], longest: int) -> NDArray[np.float64]:
    """The autocorrelation at each lag from 1 to `longest`; that of equal values is 1."""
    deviations = values - values.mean()
    if not deviations.any():
        return np.ones(longest)
    spectrum = np.abs(np.fft.rfft(deviations, 2 * len(values))) ** 2
    pairs = len(values) - np.arange(longest + 1)
    found = np.fft.irfft(spectrum)[: longest + 1] / pairs
    return np.asarray(found[1:] / found[0])


def _autocorrelation_peaks(times: NDArray[np.float64], size: NDArray[np.int64]) -> dict[int, float]:
    """The peaks of the sent bytes' autocorrelation, by lag in POINTS of all time, ascending."""
    series, _ = np.histogram(times, POINTS, weights=size.astype(np.float64))
    # Smoothed over half the mean distance of messages, so that a little jitter does not matter.
    smooth = np.convolve(series, np.hanning(max(9, POINTS // (2 * len(size)))), "same")
    spectrum = np.abs(np.fft.rfft(smooth - smooth.mean(), 2 * POINTS)) ** 2
    autocorrelation = np.fft.irfft(spectrum)[: POINTS // 2]
    # Not corrected for the fewer pairs at longer lags: of equal peaks, the shortest lag is wanted.
    autocorrelation /= autocorrelation[0]
    first_negative = int(np.argmax(autocorrelation < 0)) if (autocorrelation < 0).any() else len(autocorrelation)
    return {
        lag: float(autocorrelation[lag])
        for lag in range(max(first_negative, 1), len(autocorrelation) - 1)
        if autocorrelation[lag - 1] < autocorrelation[lag] >= autocorrelation[lag + 1]
        and autocorrelation[lag] > MIN_AUTOCORRELATION
    }


def _bytes_by_period(times: NDArray[np.float64], size: NDArray[np.int64], period: float) -> NDArray[np.float64]:
    """The bytes sent in each whole period, at least one, from the first one's longest pause on."""
    pauses = np.diff(times)[times[:-1] < period]
    longest = int(np.argmax(pauses))
    begin = times[longest] + pauses[longest] / 2
    periods = max(int((times[-1] - begin) / period), 1)
    return np.histogram(times, periods, (begin, begin + periods * period), weights=size.astype(np.float64))[0]


def _are_steps(sent: NDArray[np.float64]) -> bool:
    """Whether periods send about the same; those of single messages in a step are often empty."""
    return bool(sent.std() < MAX_VARIATION * sent.mean())


def split_by_bytes(recording: Recording, bytes_per_step: float | None) -> tuple[float, NDArray[np.int64]]:
    """The bytes per step, and the times at which the lowest rank had sent that much again.

    `bytes_per_step` None: the mean size of a message. The times are empty if the rank sent too few
    messages.
    """
    end_ns, size = gradient_messages(recording)
    if len(end_ns) < MIN_MESSAGES:
        return bytes_per_step or 0.0, end_ns[:0]
    bytes_per_step = bytes_per_step or float(size.sum()) / len(size)
    sent = np.cumsum(size, dtype=np.float64)
    steps = int(sent[-1] / bytes_per_step * (1 + 1e-9))
    return bytes_per_step, end_ns[np.searchsorted(sent, bytes_per_step * np.arange(1, steps + 1) * (1 - 1e-9))]
