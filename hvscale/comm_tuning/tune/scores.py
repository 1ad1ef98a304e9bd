"""Scores of settings: throughputs as ratios to the last trial of the defaults before them."""

from collections.abc import Iterable, Mapping

import numpy as np

from hvscale.comm_tuning.tune.document import Trial

FAILED_RATIO = 0.0  # of settings with which the job crashes, hangs or computes wrong sums
MAX_FINALISTS = 3
FINALIST_MIN_RATIO = 0.95  # lowest score of a finalist, relative to the best score
Key = frozenset[tuple[str, str]]


def key(settings: Mapping[str, str]) -> Key:
    return frozenset(settings.items())


def ratios(trials: Iterable[Trial]) -> list[float]:
    """Each trial's throughput relative to the last trial of the defaults before it.

    FAILED_RATIO where it failed.

    Every call of `hvscale tune` begins with the defaults, so a slower day does not count against a
    trial.
    """
    found, base = [], None
    for trial in trials:
        usable = trial.state in ("measured", "stopped early") and trial.throughput is not None
        value = trial.throughput.mean if usable and trial.throughput is not None else FAILED_RATIO
        if not trial.settings and value:
            base = value
        found.append(value / base if base else FAILED_RATIO)
    return found


def scores(trials: list[Trial]) -> dict[Key, list[float]]:
    """The ratios of all settings that were measured to the end and never failed."""
    found: dict[Key, list[float]] = {}
    failed = {key(trial.settings) for trial in trials if trial.state not in ("measured", "stopped early")}
    for trial, ratio in zip(trials, ratios(trials), strict=True):
        if trial.state == "measured" and key(trial.settings) not in failed:
            found.setdefault(key(trial.settings), []).append(ratio)
    return found


def score(of_settings: list[float]) -> float:
    """The geometric mean of the ratios."""
    return float(np.exp(np.mean(np.log(of_settings))))


def known(trials: list[Trial]) -> dict[Key, float]:
    """A ratio for all settings that were tried, failed ones included."""
    last = {key(trial.settings): ratio for trial, ratio in zip(trials, ratios(trials), strict=True)}
    return last | {settings: score(found) for settings, found in scores(trials).items()}


def best_ratio(trials: list[Trial]) -> float:
    """The best score; 1 or more, because the defaults have 1."""
    return max((score(found) for found in scores(trials).values()), default=1.0)


def finalists(trials: list[Trial]) -> list[Key]:
    """The few settings that may be the best, the best first; none where the defaults are best."""
    ranked = sorted(((score(found), settings) for settings, found in scores(trials).items()), key=lambda one: -one[0])
    if not ranked or ranked[0][0] <= 1:
        return []
    return [
        settings
        for value, settings in ranked[:MAX_FINALISTS]
        if settings and value >= FINALIST_MIN_RATIO * ranked[0][0]
    ]


def best_throughput(trials: list[Trial]) -> float | None:
    """The best throughput so far; None without one.

    It is scaled to the machine's speed in the last trial of the defaults.
    """
    defaults = [trial.throughput for trial in trials if not trial.settings and trial.throughput]
    return defaults[-1].mean * best_ratio(trials) if defaults else None
