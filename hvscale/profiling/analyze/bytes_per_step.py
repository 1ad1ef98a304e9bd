"""Finds from a job's messages alone how many bytes a rank sends in each step, and its steps' ends.

Every step sends the gradients of all parameters once, however Horovod packs them into messages. So
a message ends at each step's end, and between two such ends the rank sends the same bytes.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hvscale.profiling.analyze.steps import LoggedSteps, gradient_messages, last_ring_begin, step_edges
from hvscale.profiling.read.events import Recording

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
INFERRED = "the run has no step marks: its steps were inferred from its messages, as each sends the same bytes"
MIN_MESSAGES = 10
MOST_CALLS = 1 << 20  # in a rank's ring, as by default: its steps are inferred in 1.1 s and 240 MiB
# The search for equal bytes: the last messages that are searched, and repetitions in a row that are
# more than chance.
LAST_MESSAGES, MIN_LINKS = 4096, 3
MAX_BYTES = 2**62  # of them together, so that their sums are exact
# Fractions of a run: at most so much is outside repetitions, and so much more is as good.
MAX_OUTSIDE, AS_GOOD = 0.3, 0.002
SIMILAR = 1.25  # times as many bytes: no two steps
MAX_OTHER = 64  # bytes, such as those of a loss, that only some steps send
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
    end_ns, size, duration_ns = gradient_messages(recording) if recording is not None else (np.empty(0, np.int64),) * 3
    if len(end_ns) < MIN_MESSAGES or end_ns[-1] == end_ns[0]:
        return None, "MiB/s"
    kept = _after_start_up(end_ns)
    times, size, pauses = (end_ns[kept] - end_ns[kept][0]) / 1e9, size[kept], _log_pauses(end_ns, duration_ns)[kept]
    share = _by_bytes(size, pauses) or _by_time(times, size)
    return (share, "steps/s") if share else (None, "MiB/s")


def known_or_inferred_edges(recording: Recording, log: LoggedSteps | None) -> tuple[Integers | None, bool]:
    """`step_edges` or, if these are unknown, `find_step_edges`; and whether they were inferred.

    If rings lost messages, the steps are those that all rings hold. Nothing is inferred from more
    than MOST_CALLS.
    """
    edges = step_edges(recording, log)
    if edges is not None or not recording.has_calls:
        return edges, False
    lowest = min(recording.ranks, default=0)
    calls = sum(part.slots for part in recording.events.parts if part.rank == lowest)
    edges = find_step_edges(recording) if calls <= MOST_CALLS else None
    if edges is not None and recording.overwritten:
        edges = edges[edges >= last_ring_begin(recording)]
    return (edges, True) if edges is not None and len(edges) > 1 else (None, False)


def find_step_edges(recording: Recording) -> Integers | None:
    """The start of the first whole step and the ends of all, in nanoseconds since 1970.

    They are ends of the lowest rank's messages, between which it sends the bytes of a step; the
    longest pauses follow them. A step that sends more than the others lies between two of them too.
    None if no bytes repeat.
    """
    end_ns, size, duration_ns = gradient_messages(recording)
    if len(end_ns) < MIN_MESSAGES or size.sum(dtype=np.float64) > MAX_BYTES:
        return None
    pauses, kept = _log_pauses(end_ns, duration_ns), _after_start_up(end_ns)
    share = _by_bytes(size[kept], pauses[kept])
    if share is None:
        return None
    sent = np.concatenate([[0], np.cumsum(size)])
    chains = _chains(sent, int(share), pauses)
    edges = np.array([edge for chain in chains for edge in chain if edge > 0], np.int64)
    if len(edges) <= MIN_LINKS:
        return None
    # Between two rows of repetitions there may be nothing, or messages that are no whole step, such
    # as a loss for which the ranks negotiate first: they count to the next one.
    edges = edges[np.append(True, np.diff(sent[edges]) >= int(share))]
    return np.asarray(end_ns[edges - 1], np.int64)


def split_by_bytes(recording: Recording, bytes_per_step: float | None) -> tuple[float, Integers]:
    """The bytes per step, and the times at which the lowest rank had sent that much again.

    `bytes_per_step` None: the mean size of a message. The times are empty if the rank sent too few
    messages.
    """
    end_ns, size, _ = gradient_messages(recording)
    if len(end_ns) < MIN_MESSAGES:
        return bytes_per_step or 0.0, end_ns[:0]
    bytes_per_step = bytes_per_step or float(size.sum()) / len(size)
    sent = np.cumsum(size, dtype=np.float64)
    steps = int(sent[-1] / bytes_per_step * (1 + 1e-9))
    return bytes_per_step, end_ns[np.searchsorted(sent, bytes_per_step * np.arange(1, steps + 1) * (1 - 1e-9))]


def _by_bytes(size: Integers, pauses: Floats) -> float | None:
    """The bytes per step by the last messages' ends; None if neither they nor the pauses repeat."""
    size, pauses = size[-LAST_MESSAGES:], pauses[-LAST_MESSAGES:]
    if len(size) < MIN_MESSAGES or size.sum(dtype=np.float64) > MAX_BYTES:
        return None
    sent = np.concatenate([[0], np.cumsum(size)])
    tried: list[_Repetitions] = []
    complete = math.inf
    for unit in _candidates(sent):
        if unit > SIMILAR * complete:
            break
        tried.append(_Repetitions.of(sent, unit, pauses))
        if not tried[-1].outside:
            complete = min(unit, complete)
    least = min((one.outside for one in tried), default=1.0)
    if least > MAX_OUTSIDE:
        return None
    good = [one for one in tried if one.outside <= least + AS_GOOD]
    # In a step with many equal layers, a few layers more or fewer may repeat too. Such repetitions
    # drift through the step, and only before a step the pauses are always long.
    best = max((one for one in good if one.unit <= SIMILAR * good[0].unit), key=lambda one: one.pause)
    if best.pause - NOISE * best.pause_error < good[0].pause:
        best = good[0]
    # A small message in one step of ten makes ten steps repeat.
    shorter = (one for one in tried if one.outside <= MAX_OUTSIDE and best.unit % one.unit <= MAX_OTHER)
    unit, begins = next((one.unit, one.begins) for one in shorter)
    per_step = _repetitions_per_step(np.maximum.reduceat(pauses, begins))
    if per_step is None:  # if each message is a repetition, only the pauses tell the steps apart
        return float(unit) if 1.5 * len(begins) < len(size) else None
    return float(unit * per_step)


@dataclass(frozen=True)
class _Repetitions:
    """How well `unit` bytes repeat; `outside`: the fraction of a run that does not repeat."""

    unit: int
    outside: float
    begins: list[int]
    """The first message of each repetition."""
    pause: float
    """The mean logarithm of the seconds before a repetition, with its standard error."""
    pause_error: float

    @classmethod
    def of(cls, sent: Integers, unit: int, pauses: Floats) -> "_Repetitions":
        chains = _chains(sent, unit, pauses)
        begins = [begin for chain in chains for begin in chain[:-1]]
        if not begins:
            return cls(unit, 1.0, begins, -math.inf, 0.0)
        before = pauses[begins]
        error = float(before.std()) / math.sqrt(len(before))
        return cls(unit, _outside(sent, unit, chains), begins, float(before.mean()), error)


def _candidates(sent: Integers) -> list[int]:
    """Differences of the bytes sent up to two messages' ends that are frequent enough, ascending.

    `sent`: the bytes before the first message and up to each message's end.
    """
    apart = range(1, len(sent) // MIN_LINKS + 1)
    values, counts = np.unique(np.concatenate([sent[one:] - sent[:-one] for one in apart]), return_counts=True)
    share = values / sent[-1]
    found: list[int] = values[((counts + 2) * share >= 1 - MAX_OUTSIDE) & (share <= 1 / MIN_LINKS)].tolist()
    return found


def _after_start_up(end_ns: Integers) -> NDArray[np.bool_]:
    """Which messages are after the first tenth of the time: earlier ones may belong to no step.

    All, if that would leave less than half of them: a job that stood still at its end.
    """
    late = np.asarray(end_ns >= end_ns[0] + (end_ns[-1] - end_ns[0]) // 10)
    return late if late.mean() >= 0.5 else np.ones_like(late)


def _log_pauses(end_ns: Integers, duration_ns: Integers) -> Floats:
    """The logarithm of the seconds between each message's begin and the end of the one before."""
    idle = end_ns - duration_ns - np.concatenate([end_ns[:1], end_ns[:-1]])
    return np.asarray(np.log(np.maximum(idle / 1e9, SHORTEST_PAUSE)))


def _chains(sent: Integers, unit: int, pauses: Floats) -> list[list[int]]:
    """The repetitions of `unit` bytes: for each row of them, the messages before each of its edges.

    Of rows that are about as long, the one before whose repetitions the pauses are longest.
    `pauses`: before each message, as by `_log_pauses`.
    """
    ends = np.minimum(np.searchsorted(sent, sent + unit), len(sent) - 1)
    linked = np.flatnonzero(sent[ends] == sent + unit).tolist()
    links, paused = [0] * len(sent), [0.0] * len(sent)  # of the repetitions in a row from here
    for start in reversed(linked):
        links[start] = links[ends[start]] + 1
        paused[start] = paused[ends[start]] + float(pauses[start])
    starts = [start for start in linked if links[start] >= MIN_LINKS]
    chains: list[list[int]] = []
    position = 0
    while (first := bisect_left(starts, position)) < len(starts):
        until = int(np.searchsorted(sent, sent[starts[first]] + unit))
        choices = starts[first : bisect_left(starts, until)]
        most = max(links[start] for start in choices)
        position = max(
            (start for start in choices if links[start] >= most - 1), key=lambda start: paused[start] / links[start]
        )
        chain = [position]
        while links[position]:
            position = int(ends[position])
            chain.append(position)
        chains.append(chain)
    return chains


def _outside(sent: Integers, unit: int, chains: list[list[int]]) -> float:
    """Which fraction of a run is outside repetitions.

    Of the messages between rows of them, and of the bytes by which those before the first one and
    after the last one exceed `unit`: a job may begin and end within one.
    """
    if not chains:
        return 1.0
    between = sum(later[0] - earlier[-1] for earlier, later in pairwise(chains))
    before, after = sent[chains[0][0]], sent[-1] - sent[chains[-1][-1]]
    excess = max(before - unit, 0) + max(after - unit, 0)
    return between / (len(sent) - 1) + float(excess / sent[-1])


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
