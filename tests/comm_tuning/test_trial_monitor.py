"""The monitor of a tuning trial, with a clock that the test sets."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hvscale.comm_tuning.tune import trial_monitor
from hvscale.comm_tuning.tune.plan import FreshStart, Plan, TrialLimits, TrialOutcome
from hvscale.comm_tuning.tune.steps import MeasuredSteps
from hvscale.core.run_folder import RunFolder

START = FreshStart({}, TrialLimits(first_step=60, stall=30, trial=60), folder="x")
SUSPENDED = 3600.0


class NoisySteps:
    """A step each second, too noisy for a narrow interval."""

    kind = read_from = "steps"
    warmup = 3
    count = 0

    def steps(self, _run: RunFolder) -> MeasuredSteps | None:
        times = 1 + 0.3 * np.sin(1.7 * np.arange(self.count))
        return MeasuredSteps(np.ones(self.count), times, "images/s") if self.count else None


def one_trial() -> Iterator[FreshStart]:
    yield START


@pytest.mark.parametrize("suspended_after", [None, 8.0])
def test_time_in_which_the_machine_was_suspended_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suspended_after: float | None
) -> None:
    now = 0.0
    monkeypatch.setattr(trial_monitor, "time", SimpleNamespace(monotonic=lambda: now))
    source: Any = NoisySteps()
    plan: Any = one_trial()
    next(plan)
    monitor = trial_monitor.TrialMonitor(RunFolder(tmp_path), START, source, plan, None)
    awake = 0.0
    while awake < 100:
        awake += 0.25
        now += 0.25 + (SUSPENDED if awake == suspended_after else 0)
        source.count = int(awake)
        if monitor.watch(monitor.run):
            break
    # The limit is of the time after the first step; without intervals a trial may end earlier.
    assert source.count > 20


def test_a_trial_whose_steps_have_no_images_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(trial_monitor, "time", SimpleNamespace(monotonic=lambda: now))
    source: Any = NoisySteps()
    monkeypatch.setattr(source, "steps", lambda run: MeasuredSteps(np.zeros(int(now)), np.ones(int(now)), "images/s"))
    outcomes: list[TrialOutcome] = []

    def one_trial() -> Plan:
        outcomes.append((yield START))

    plan = one_trial()
    next(plan)
    monitor = trial_monitor.TrialMonitor(RunFolder(tmp_path), START, source, plan, None)
    while not monitor.watch(monitor.run) and now < 100:
        now += 1
    monitor.job_ended(None)
    [outcome] = outcomes
    assert (outcome.state, outcome.problem) == ("hung", "no step with images in 60 s")
    assert now < 70
