"""Scores of settings: throughputs relative to the last trial of the defaults before them."""

from collections.abc import Iterable, Mapping

import numpy as np

from hvscale.comm_tuning.tune.document import Trial

FAILED_RATIO = 0.0  # for settings with which the job crashes, hangs or computes wrong sums
SUCCEEDED = ("measured", "stopped early")
MAX_FINALISTS = 3
FINALIST_MIN_RATIO = 0.95  # lowest score of a finalist, relative to the best score
SettingsKey = frozenset[tuple[str, str]]


def settings_key(settings: Mapping[str, str]) -> SettingsKey:
    return frozenset(settings.items())


def ratios(trials: Iterable[Trial]) -> list[float]:
    """Each trial's throughput over that of the last trial of the defaults; FAILED_RATIO on failure.

    Every call of `hvscale tune` begins with the defaults, so trials on a slower day are comparable.
    """
    found, base = [], None
    for trial in trials:
        succeeded = trial.state in SUCCEEDED
        value = trial.throughput.mean if succeeded and trial.throughput is not None else FAILED_RATIO
        if not trial.settings and value:
            base = value
        found.append(value / base if base else FAILED_RATIO)
    return found


def ratios_by_settings(trials: list[Trial]) -> dict[SettingsKey, list[float]]:
    """The ratios of all settings that were measured to the end and never failed."""
    found: dict[SettingsKey, list[float]] = {}
    failed = {settings_key(trial.settings) for trial in trials if trial.state not in SUCCEEDED}
    for trial, ratio in zip(trials, ratios(trials), strict=True):
        if trial.state == "measured" and settings_key(trial.settings) not in failed:
            found.setdefault(settings_key(trial.settings), []).append(ratio)
    return found


def score(of_settings: list[float]) -> float:
    """The geometric mean of the ratios."""
    return float(np.exp(np.mean(np.log(of_settings))))


def known_ratios(trials: list[Trial]) -> dict[SettingsKey, float]:
    """A ratio for all settings that were tried, including failed ones."""
    last = {settings_key(trial.settings): ratio for trial, ratio in zip(trials, ratios(trials), strict=True)}
    return last | {settings: score(found) for settings, found in ratios_by_settings(trials).items()}


def best_ratio(trials: list[Trial]) -> float:
    """The best score, at least that of the defaults: 1."""
    return max((score(found) for found in ratios_by_settings(trials).values()), default=1.0)


def finalists(trials: list[Trial]) -> list[SettingsKey]:
    """The few settings that may be the best, best first; empty if the defaults are best."""
    ranked = sorted(
        ((score(found), settings) for settings, found in ratios_by_settings(trials).items()), key=lambda one: -one[0]
    )
    if not ranked or ranked[0][0] <= 1:
        return []
    return [
        settings
        for value, settings in ranked[:MAX_FINALISTS]
        if settings and value >= FINALIST_MIN_RATIO * ranked[0][0]
    ]


def best_throughput(trials: list[Trial]) -> float | None:
    """The best throughput so far, scaled to the machine's speed in the last defaults trial."""
    defaults = [trial.throughput for trial in trials if not trial.settings and trial.throughput]
    return defaults[-1].mean * best_ratio(trials) if defaults else None
