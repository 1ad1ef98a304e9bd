"""Finds from a job's messages alone how many bytes a rank sends in each step, and its steps' ends.

Every step sends the gradients of all parameters once, however Horovod packs them into messages. So
a message ends at each step's end, and between two such ends the rank sends the same bytes.
"""

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from hvscale.profiling.analyze.steps import gradient_messages
from hvscale.profiling.read.events import Recording

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
MIN_MESSAGES = 10
# The search for equal bytes: the last messages that are searched, and repetitions in a row that are
# more than chance.
LAST_MESSAGES, MIN_LINKS = 4096, 3
MAX_BYTES = 2**62  # of them together, so that their sums are exact
# Fractions of a run: at most so much is outside repetitions, and so much more is as good.
MAX_OUTSIDE, AS_GOOD = 0.3, 0.002
MAX_OTHER = 0.001  # of a step's bytes: messages that only some steps send
# The search for longer pauses after several repetitions. Shorter ones are alike. In standard
# deviations: what independent pauses rarely reach, and by how much the best of equal ones exceeds
# the first.
SHORTEST_PAUSE, CHANCE, NOISE, CLOSE = 1e-6, 5, 4, 0.05
# The search for a period: points in time, and the minimum autocorrelation.
POINTS = 1 << 16
MIN_AUTOCORRELATION = 0.2
NEAR_BEST = 0.8  # of the best autocorrelation: the shortest such lag is the period, longer ones are its multiples
NEIGHBOURS = 1.5  # times a lag: up to here a better peak is the same period's
MAX_VARIATION = 0.3  # of the bytes sent in each period: standard deviation / mean


def find_bytes_per_step(recording: Recording | None) -> tuple[float | None, str]:
    """The bytes that a rank sends per step, and the unit of a throughput derived from them.

    They are the bytes after which a message always ends: several times as many if the pauses say
    that a step has several such repetitions. Without such bytes, a step is one period of the bytes
    sent over time, found by their autocorrelation. Without a period: (None, "MiB/s").
    """
    end_ns, size = gradient_messages(recording) if recording is not None else (np.empty(0, np.int64),) * 2
    if len(end_ns) < MIN_MESSAGES or end_ns[-1] == end_ns[0]:
        return None, "MiB/s"
    # Skip the first tenth: messages at the start belong to no step.
    kept = end_ns >= end_ns[0] + (end_ns[-1] - end_ns[0]) // 10
    times, size = (end_ns[kept] - end_ns[kept][0]) / 1e9, size[kept]
    share = _by_bytes(times[-LAST_MESSAGES:], size[-LAST_MESSAGES:]) or _by_time(times, size)
    return (share, "steps/s") if share else (None, "MiB/s")


def split_by_bytes(recording: Recording, bytes_per_step: float | None) -> tuple[float, Integers]:
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


def _by_bytes(times: Floats, size: Integers) -> float | None:
    """The bytes per step by the messages' ends; None if they, and the pauses, do not repeat."""
    if len(size) < MIN_MESSAGES or size.sum(dtype=np.float64) > MAX_BYTES:
        return None
    sent = np.concatenate([[0], np.cumsum(size)])
    tried: list[tuple[float, int, list[int]]] = []
    for unit in _candidates(sent):
        outside, begins = _repetitions(sent, unit)
        tried.append((outside, unit, begins))
        if not outside:
            break
    least = min((outside for outside, _, _ in tried), default=1.0)
    if least > MAX_OUTSIDE:
        return None
    best = next(unit for outside, unit, _ in tried if outside <= least + AS_GOOD)
    # A small message in one step of ten makes ten steps repeat.
    unit, begins = next(
        (unit, begins) for outside, unit, begins in tried if outside <= MAX_OUTSIDE and best % unit <= MAX_OTHER * unit
    )
    pauses = np.log(np.maximum(np.diff(times, prepend=times[0]), SHORTEST_PAUSE))
    per_step = _repetitions_per_step(np.maximum.reduceat(pauses, begins))
    if per_step is None:  # if each message is a repetition, only the pauses tell the steps apart
        return float(unit) if len(begins) < len(size) / 2 else None
    return float(unit * per_step)


def _candidates(sent: Integers) -> list[int]:
    """Differences of the bytes sent up to two messages' ends that are frequent enough, ascending.

    `sent`: the bytes before the first message and up to each message's end.
    """
    apart = range(1, len(sent) // MIN_LINKS + 1)
    values, counts = np.unique(np.concatenate([sent[one:] - sent[:-one] for one in apart]), return_counts=True)
    share = values / sent[-1]
    found: list[int] = values[((counts + 2) * share >= 1 - MAX_OUTSIDE) & (share <= 1 / MIN_LINKS)].tolist()
    return found


def _repetitions(sent: Integers, unit: int) -> tuple[float, list[int]]:
    """Which fraction is outside repetitions of `unit` bytes, and the first message of each one.

    Of the messages between repetitions, and of the bytes by which those before the first one and
    after the last one exceed `unit`: a job may begin and end within one.
    """
    messages = len(sent) - 1
    ends = np.minimum(np.searchsorted(sent, sent + unit), messages)
    linked = np.flatnonzero(sent[ends] == sent + unit).tolist()
    links = [0] * len(sent)  # the repetitions in a row from here
    for start in reversed(linked):
        links[start] = links[ends[start]] + 1
    starts = [start for start in linked if links[start] >= MIN_LINKS]
    between, position = 0, 0
    begins: list[int] = []
    while (first := bisect_left(starts, position)) < len(starts):
        until = int(np.searchsorted(sent, sent[starts[first]] + unit))
        start = max(starts[first : bisect_left(starts, until)], key=links.__getitem__)
        between += start - position if begins else 0
        position = start
        while links[position]:
            begins.append(position)
            position = int(ends[position])
    if not begins:
        return 1.0, begins
    before, after = sent[begins[0]], sent[-1] - sent[position]
    excess = max(before - unit, 0) + max(after - unit, 0)
    return between / messages + float(excess / sent[-1]), begins


def _repetitions_per_step(pauses: Floats) -> int | None:
    """After how many repetitions the longest pauses repeat; None if they do not.

    `pauses`: the logarithm of the longest pause in each repetition.
    """
    longest = len(pauses) // 4  # so that each step is seen several times
    if not longest or np.ptp(pauses) == 0:
        return None
    found = _autocorrelation(pauses, longest)
    best = float(found.max())
    if best < CHANCE / math.sqrt(len(pauses)):
        return None
    return 1 + int(np.argmax(found >= best - max(NOISE * (1 - best**2) / math.sqrt(len(pauses)), CLOSE)))


def _autocorrelation(values: Floats, longest: int) -> Floats:
    """The autocorrelation of different values at each lag from 1 to `longest`."""
    spectrum = np.abs(np.fft.rfft(values - values.mean(), 2 * len(values))) ** 2
    pairs = len(values) - np.arange(longest + 1)
    found = np.fft.irfft(spectrum)[: longest + 1] / pairs
    return np.asarray(found[1:] / found[0])


def _by_time(times: Floats, size: Integers) -> float | None:
    """The bytes sent in a period of time; None without a period."""
    peaks = _autocorrelation_peaks(times, size)
    if not peaks:
        return None
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
    return float(candidates[lag].mean())


def _autocorrelation_peaks(times: Floats, size: Integers) -> dict[int, float]:
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


def _bytes_by_period(times: Floats, size: Integers, period: float) -> Floats:
    """The bytes sent in each whole period, at least one, from the first one's longest pause on."""
    pauses = np.diff(times)[times[:-1] < period]
    longest = int(np.argmax(pauses))
    begin = times[longest] + pauses[longest] / 2
    periods = max(int((times[-1] - begin) / period), 1)
    return np.histogram(times, periods, (begin, begin + periods * period), weights=size.astype(np.float64))[0]


def _are_steps(sent: Floats) -> bool:
    """Whether periods send about the same; those of single messages in a step are often empty."""
    return bool(sent.std() < MAX_VARIATION * sent.mean())
