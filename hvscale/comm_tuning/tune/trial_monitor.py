"""Watches one job from outside, measures its trials, and decides when each one ends."""

import time
from collections.abc import Mapping
from dataclasses import replace

from hvscale.comm_tuning.tune.document import TrialState
from hvscale.comm_tuning.tune.plan import FreshStart, NextTrial, Plan, SameStart, TrialOutcome, advance
from hvscale.comm_tuning.tune.steps import INTERVAL_BLOCKS, MeasuredSteps, StepSource
from hvscale.core.errors import RankFailedError
from hvscale.core.run_folder import RunFolder
from hvscale.core.trial_protocol import Command, Reply, TrialFolder

POLL_SECONDS = 0.2
SUSPENDED_SECONDS = 5.0  # without a call of `watch`, which is called 20 times a second
NARROW_INTERVAL_RATIO = 1.04  # upper / lower end of an interval that needs no more steps
HOPELESS_RATIO = 2.0  # best throughput / this one: stop without a confidence interval
HOPELESS_TIME_SHARE = 0.25  # of the trial's time limit that must have passed before that
MIN_STEPS = 2  # after the warm-up
UNLOCKED_TIME_RATIO = 2  # a trial takes this much longer while the source of its steps is not locked
STOP_SECONDS = 20.0  # timeout for a training to end after the command to stop


class TrialMonitor:
    """Monitors the trials of one job: pass `watch` to its launch, then call `job_ended`.

    The monitor passes the outcome of each trial to `plan`. If the plan answers with a trial in the
    same start, it commands the training to begin that trial. Any other answer ends the job.
    `next_start` is then the plan's next start, None if the plan has ended.
    """

    def __init__(
        self, run: RunFolder, start: FreshStart, source: StepSource, plan: Plan, commands: TrialFolder | None
    ) -> None:
        """`commands`: for a training that takes commands while it runs; else None."""
        self.run, self.source, self.commands = run, source, commands
        self.trial: NextTrial = start
        self.next_start: FreshStart | None = None
        self.first_step_after: float | None = None
        self.seen = 0  # steps of the current trial
        self._plan = plan
        self._first = 0  # step of the job at which the current trial began
        self._command: Command | None = None
        self._outcome: TrialOutcome | None = None  # of the trial whose sums are being checked
        self._hung: str | None = None
        self._is_over = False  # the plan has received every outcome
        self._timer = PollTimer(POLL_SECONDS)
        self._began = self._moved = self._commanded_at = self._watched = time.monotonic()
        self._longest_wait = 0.0
        self._measuring_since: float | None = None
        self._read_from: str | None = None

    def watch(self, run: RunFolder) -> bool:
        """Check the job; True ends it."""
        now = time.monotonic()
        missed, self._watched = now - self._watched, now
        if missed > SUSPENDED_SECONDS:
            # The job was suspended, or this process was busy: that time does not count for limits.
            self._began, self._moved, self._commanded_at = (
                at + missed for at in (self._began, self._moved, self._commanded_at)
            )
            if self._measuring_since is not None:
                self._measuring_since += missed
        return self._timer.due() and self._poll(now)

    def job_ended(self, failure: RankFailedError | None) -> None:
        """Pass the last outcome to the plan. `failure`: of a rank, else None."""
        if self._is_over:
            return
        is_beginning = self._command is not None and self._command.action == "begin"
        outcome = self._outcome or self._measured(None if is_beginning else self._steps())
        if self._hung is not None:
            outcome = replace(outcome, state="hung", problem=self._hung)
        elif failure is not None:
            outcome = replace(outcome, state="crashed", problem=str(failure), failure=failure)
        elif outcome.throughput is None:
            outcome = replace(outcome, state="crashed", problem="it ended before its first step")
        self._report(outcome, can_continue=False)

    def _poll(self, now: float) -> bool:
        if self._command is not None:
            self._timer.polled(0)
            return self._await_reply(self._command, now)
        steps = self._steps()
        if steps is None or not len(steps):
            return self._hangs_before_its_first_step(now)
        measured_seconds = self._note_progress(steps, now)
        if now - self._moved > self.trial.limits.stall:
            self._hung = f"no step in {self.trial.limits.stall:.0f} s, after {len(steps)} steps"
            return True
        counted, limit = steps.after(self.source.warmup), self.trial.limits.first_step
        if len(counted) and not counted.work.any() and measured_seconds > limit:
            self._hung = f"no step with images in {limit:.0f} s"
            return True
        state = self._verdict(steps, measured_seconds)
        if state is None:
            return False
        self._outcome = replace(self._measured(steps), state=state)
        if self.commands is None:
            return True
        self._send("check")
        return False

    def _hangs_before_its_first_step(self, now: float) -> bool:
        waited = now - (self._moved if self._first else self._began)
        limit = self.trial.limits.stall if self._first else self.trial.limits.first_step
        if waited > limit:
            self._hung = f"no step in {limit:.0f} s"
        return self._hung is not None

    def _note_progress(self, steps: MeasuredSteps, now: float) -> float:
        """Record when the steps came; return the seconds of measurement so far."""
        if self._measuring_since is None or self._read_from != self.source.read_from:
            # A better source may appear later: broadcasts of parameters come before marked steps.
            self._measuring_since, self._read_from = now, self.source.read_from
            self.first_step_after = self.first_step_after or now - self._began
        if len(steps) != self.seen:
            self._longest_wait = max(self._longest_wait, now - self._moved if self.seen else 0.0)
            self.seen, self._moved = len(steps), now
        return now - self._measuring_since

    def _await_reply(self, command: Command, now: float) -> bool:
        """Wait for the training to execute the command, then do the protocol's next step."""
        reply = self.commands.read_reply(command.number) if self.commands is not None else None
        if command.action == "stop":
            return now - self._commanded_at > STOP_SECONDS
        if reply is None:
            limit = self.trial.limits.first_step
            if now - self._commanded_at > limit:
                doing = "its sums were being checked" if command.action == "check" else "Horovod was being restarted"
                self._hung = f"no step in {limit:.0f} s while {doing}"
                return True
            return False
        self._command = None
        if command.action == "begin":
            self._first, self.seen, self._measuring_since, self._moved = reply.steps, 0, None, time.monotonic()
            self._longest_wait = 0.0
        else:
            self._sums_checked(reply)
        return False

    def _sums_checked(self, reply: Reply) -> None:
        """Report the trial after the training has checked its sums."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            if reply.problem is not None:
                outcome = replace(outcome, state="wrong sums", problem=reply.problem)
            self._report(outcome, can_continue=True)

    def _report(self, outcome: TrialOutcome, can_continue: bool) -> None:
        """Pass the outcome to the plan, and begin its next trial if that is in this job."""
        following = advance(self._plan, outcome)
        if isinstance(following, SameStart):
            if not can_continue:
                raise TypeError("a plan must not continue in a job that has ended")
            self.trial = following
            self._send("begin", following.variables)
            return
        self._is_over, self.next_start = True, following
        if can_continue:
            self._send("stop")

    def _send(self, action: str, variables: Mapping[str, str] | None = None) -> None:
        if self.commands is None:
            return
        last = self.commands.read_command()
        number = last.number + 1 if last is not None else 1
        self._command = Command.model_validate({"number": number, "action": action, "variables": dict(variables or {})})
        self._commanded_at = time.monotonic()
        self.commands.send_command(self._command)

    def _steps(self) -> MeasuredSteps | None:
        """The steps of the current trial."""
        began = time.monotonic()
        steps = self.source.steps(self.run)
        self._timer.polled(time.monotonic() - began)
        return steps.after(self._first) if steps is not None else None

    def _measured(self, steps: MeasuredSteps | None) -> TrialOutcome:
        outcome = replace(
            outcome_of(self.run, self.trial.settings, steps, self.source),
            longest_wait=self._longest_wait,
            first_step_after=self.first_step_after,
        )
        if self.source.kind != "metric" or self._measuring_since is None:
            return outcome
        return replace(outcome, seconds=time.monotonic() - self._measuring_since)  # matches of --metric have no seconds

    def _verdict(self, steps: MeasuredSteps, seconds: float) -> TrialState | None:
        """The state in which the trial ends after `seconds` of steps; None while it continues."""
        counted, limit = steps.after(self.source.warmup), self.trial.limits.trial
        found = counted.throughput()
        if found is None or len(counted) < MIN_STEPS:
            return None
        low, high = found.low or 0.0, found.high or 0.0
        has_interval = len(counted) >= INTERVAL_BLOCKS and found.low is not None and found.high is not None
        best = self.trial.throughput_to_beat
        if best is not None:
            is_slower = has_interval and high < best
            is_hopeless = found.mean * HOPELESS_RATIO < best and (has_interval or seconds > HOPELESS_TIME_SHARE * limit)
            if is_slower or is_hopeless:
                return "stopped early"
        if self.source.kind is None:
            return "measured" if seconds > UNLOCKED_TIME_RATIO * limit else None
        is_narrow = has_interval and len(counted) >= 2 * INTERVAL_BLOCKS and high < NARROW_INTERVAL_RATIO * low
        return "measured" if is_narrow or seconds > limit else None


class PollTimer:
    """Decides when to poll again: polling takes at most a tenth of the time."""

    def __init__(self, every: float) -> None:
        self.every, self.next = every, 0.0

    def due(self) -> bool:
        return time.monotonic() >= self.next

    def polled(self, seconds: float) -> None:
        """Record the duration of a poll."""
        self.next = time.monotonic() + max(self.every, 10 * seconds)


def outcome_of(
    run: RunFolder, settings: Mapping[str, str], steps: MeasuredSteps | None, source: StepSource
) -> TrialOutcome:
    """The outcome of a trial with these steps; `steps`: None if there are none."""
    if steps is None:
        return TrialOutcome(settings, run)
    counted = steps.after(min(source.warmup, max(0, len(steps) - 1)))
    return TrialOutcome(
        settings=settings,
        run=run,
        steps=len(steps),
        seconds=float(steps.seconds.sum()),
        throughput=counted.throughput(),
    )
