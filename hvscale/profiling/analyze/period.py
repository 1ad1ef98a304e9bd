"""Steps that nobody marked, by what their collectives send: the same bytes, again and again."""

import numpy as np
from numpy.typing import NDArray

from hvscale.profiling.read.events import Recording

# Of the search for a period: as many points in time, and the least likeness of what lies one period
# apart.
POINTS = 1 << 16
LEAST_LIKENESS = 0.2
NEARLY = 0.8  # of the best likeness: the shortest such period is the one, the others are its multiples
LEAST_MESSAGES = 10


def gradient_messages(recording: Recording) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When the lowest rank's collectives ended, in order, and their bytes; without those by which
    ranks agree on what to send.
    """
    events = recording.events
    chosen = (events.rank == min(recording.ranks, default=0)) & ~events.bitwise & (events.bytes > 0)
    end_ns = events.start_ns[chosen] + events.duration_ns[chosen]
    order = np.argsort(end_ns, kind="stable")
    return end_ns[order], events.bytes[chosen][order]


def share_of_a_step(recording: Recording | None) -> tuple[float | None, str]:
    """Bytes that a rank sends in one period of its collectives, and the unit of a throughput that
    counts by them.

    The period is where the bytes over time are most like themselves a while later (their
    autocorrelation). Where there is none, MiB/s.
    """
    end_ns, size = gradient_messages(recording) if recording is not None else (np.empty(0, np.int64),) * 2
    if len(end_ns) < LEAST_MESSAGES or end_ns[-1] == end_ns[0]:
        return None, "MiB/s"
    # Without the first tenth: what is sent at the start is no step's.
    kept = end_ns >= end_ns[0] + (end_ns[-1] - end_ns[0]) // 10
    times, size = (end_ns[kept] - end_ns[kept][0]) / 1e9, size[kept]
    series, edges = np.histogram(times, POINTS, weights=size.astype(np.float64))
    # So wide that messages which come a little early or late still meet, and half as wide as they
    # lie apart.
    smooth = np.convolve(series, np.hanning(max(9, POINTS // (2 * len(size)))), "same")
    spectrum = np.abs(np.fft.rfft(smooth - smooth.mean(), 2 * POINTS)) ** 2
    likeness = np.fft.irfft(spectrum)[: POINTS // 2]
    likeness /= likeness[0]  # less for longer lags, of which fewer pairs are left: the shortest of equals is wanted
    away = int(np.argmax(likeness < 0)) if (likeness < 0).any() else len(likeness)
    peaks = [
        lag
        for lag in range(max(away, 1), len(likeness) - 1)
        if likeness[lag - 1] < likeness[lag] >= likeness[lag + 1] and likeness[lag] > LEAST_LIKENESS
    ]
    if not peaks:
        return None, "MiB/s"
    best = max(likeness[lag] for lag in peaks)
    lag = next(lag for lag in peaks if likeness[lag] >= NEARLY * best)
    period = lag * (edges[1] - edges[0])
    return float(size.sum() / (times[-1] - times[0]) * period), "steps/s"


def ends_of_shares(recording: Recording, share: float | None) -> tuple[float, NDArray[np.int64]]:
    """The share, by default the bytes of a message, and when the lowest rank had sent so much
    again; none where it sent too little.
    """
    end_ns, size = gradient_messages(recording)
    if len(end_ns) < LEAST_MESSAGES:
        return share or 0.0, end_ns[:0]
    share = share or float(size.sum()) / len(size)
    moved = np.cumsum(size, dtype=np.float64)
    whole = int(moved[-1] / share * (1 + 1e-9))
    return share, end_ns[np.searchsorted(moved, share * np.arange(1, whole + 1) * (1 - 1e-9))]
