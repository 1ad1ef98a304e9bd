"""One start of the job, followed from outside: the trials that are measured in it, and when each of them has told enough."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from hvscale.comm_tuning.tune.document import TrialState
from hvscale.comm_tuning.tune.step_source import INTERVAL_BLOCKS, PollTimer, Steps, StepSource
from hvscale.core.errors import RankFailedError
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate
from hvscale.core.trial_protocol import Command, Reply, TrialFolder

POLL_SECONDS = 0.2
MISSED_SECONDS = 5.0  # between two calls of `watch`, which come 20 times a second
NARROW_INTERVAL_RATIO = 1.04  # factor between the ends of an interval that needs no more steps
HOPELESS_RATIO = 2.0  # times slower than the best: no interval is waited for, only some of the steps or of the time
HOPELESS_TIME_SHARE = 0.25
MIN_STEPS = 2
UNLOCKED_TIME_RATIO = 2  # as long while it is not settled what tells the steps
END_SECONDS = 20.0  # for a training to end after it was told to


@dataclass(frozen=True)
class TrialLimits:
    """Seconds: until the first step of a start, between two steps, and for the steps of one trial at most."""

    first_step: float
    stall: float
    trial: float


@dataclass(frozen=True)
class TrialOutcome:
    """What came of one trial. `seconds`: those of its steps, the warm-up's included; `longest_wait`: for one of them, as seen from outside;
    `failure`: its crash."""

    settings: dict[str, str]
    state: TrialState = "measured"
    steps: int = 0
    seconds: float = 0.0
    throughput: Estimate | None = None
    problem: str | None = None
    longest_wait: float = 0.0
    failure: RankFailedError | None = None


@dataclass(frozen=True)
class FollowUp:
    """The next trial of the same start: its settings, and what Horovod is to read for them."""

    settings: dict[str, str]
    variables: Mapping[str, str]


@dataclass
class TrialMonitor:
    """Give `watch` to a launch, and call `ended` after it.

    `best()`: the throughput to beat, None where there is none to stop early for. `done(outcome)` is told of each trial, and gives the next one for
    the same start or None; without `commands` there is none. `check(run)`: what is wrong with the first trial's losses.
    """

    run: RunFolder
    settings: dict[str, str]
    source: StepSource
    limits: Callable[[], TrialLimits]
    best: Callable[[], float | None]
    done: Callable[[TrialOutcome], FollowUp | None]
    check: Callable[[RunFolder], str | None]
    commands: TrialFolder | None = None
    first_step_after: float | None = None
    seen: int = 0
    _first: int = 0  # step of the start with which the trial at work began
    _command: Command | None = None
    _outcome: TrialOutcome | None = None  # of the trial whose sums are being checked
    _hung: str | None = None
    _over: bool = False  # every trial was told of
    _clock: PollTimer = field(default_factory=lambda: PollTimer(POLL_SECONDS))

    def __post_init__(self) -> None:
        self._began = self._moved = self._commanded_at = time.monotonic()
        self._watched = self._began
        self._longest_wait = 0.0
        self._measuring_since: float | None = None
        self._read_from: str | None = None

    def watch(self, run: RunFolder) -> bool:
        """True: the job is to be ended."""
        now = time.monotonic()
        missed, self._watched = now - self._watched, now
        if missed > MISSED_SECONDS:
            # The whole job was suspended, or this process was busy: nobody has waited meanwhile.
            self._began, self._moved, self._commanded_at = (
                at + missed for at in (self._began, self._moved, self._commanded_at)
            )
        return self._clock.due() and self._look(now)

    def ended(self, failure: RankFailedError | None) -> None:
        """The job has ended, by `failure` or well."""
        if self._over:
            return
        beginning = self._command is not None and self._command.action == "begin"
        outcome = self._outcome or self._measured(None if beginning else self._steps())
        if self._hung is not None:
            outcome = replace(outcome, state="hung", problem=self._hung)
        elif failure is not None:
            outcome = replace(outcome, state="crashed", problem=str(failure), failure=failure)
        elif outcome.throughput is None:
            outcome = replace(outcome, state="crashed", problem="it ended before a step was seen")
        self._tell(outcome)

    def _look(self, now: float) -> bool:
        if self._command is not None:
            self._clock.looked(0)
            return self._await_reply(self._command, now)
        steps = self._steps()
        if steps is None or not len(steps):
            waited = now - (self._moved if self._first else self._began)
            limit = self.limits().stall if self._first else self.limits().first_step
            if waited > limit:
                self._hung = f"no step in {limit:.0f} s"
            return self._hung is not None
        if self._measuring_since is None or self._read_from != self.source.read_from:
            # What is there first need not be what tells the steps: parameters are broadcast before a step is marked.
            self._measuring_since, self._read_from = now, self.source.read_from
            self.first_step_after = self.first_step_after or now - self._began
        if len(steps) != self.seen:
            self._longest_wait = max(self._longest_wait, now - self._moved if self.seen else 0.0)
            self.seen, self._moved = len(steps), now
        if now - self._moved > self.limits().stall:
            self._hung = f"no step in {self.limits().stall:.0f} s, after {len(steps)} steps"
            return True
        state = self._verdict(steps, now - self._measuring_since)
        if state is None:
            return False
        outcome = replace(self._measured(steps), state=state)
        if self.commands is None:
            self._outcome = outcome
            return True
        self._outcome = outcome
        self._send("check")
        return False

    def _await_reply(self, command: Command, now: float) -> bool:
        """Wait until it is executed, then continue with the next step of the protocol."""
        reply = self.commands.read_reply(command.number) if self.commands is not None else None
        if command.action == "stop":
            return now - self._commanded_at > END_SECONDS
        if reply is None:
            if now - self._commanded_at > self.limits().first_step:
                doing = "sums were checked" if command.action == "check" else "Horovod was initialised again"
                self._hung = f"no step in {self.limits().first_step:.0f} s while its {doing}"
                return True
            return False
        self._go_on(command, reply)
        return False

    def _go_on(self, command: Command, reply: Reply) -> None:
        self._command = None
        if command.action == "begin":
            self._first, self.seen, self._measuring_since, self._moved = reply.steps, 0, None, time.monotonic()
            self._longest_wait = 0.0
            return
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return
        if reply.problem is not None:
            outcome = replace(outcome, state="wrong sums", problem=reply.problem)
        following = self._tell(outcome)
        if following is None:
            self._over = True
            self._send("stop")
        else:
            self.settings = following.settings
            self._send("begin", following.variables)

    def _send(self, action: str, variables: Mapping[str, str] | None = None) -> None:
        if self.commands is None:
            return
        last = self.commands.read_command()
        number = last.number + 1 if last is not None else 1
        self._command = Command.model_validate({"number": number, "action": action, "variables": dict(variables or {})})
        self._commanded_at = time.monotonic()
        self.commands.send_command(self._command)

    def _tell(self, outcome: TrialOutcome) -> FollowUp | None:
        if not self._first and outcome.state in ("measured", "stopped early"):
            problem = self.check(self.run)
            if problem is not None:
                outcome = replace(outcome, state="wrong sums", problem=problem)
        return self.done(outcome)

    def _steps(self) -> Steps | None:
        began = time.monotonic()
        steps = self.source.steps(self.run)
        self._clock.looked(time.monotonic() - began)
        return steps.after(self._first) if steps is not None else None

    def _measured(self, steps: Steps | None) -> TrialOutcome:
        outcome = replace(outcome_of(self.settings, steps, self.source), longest_wait=self._longest_wait)
        if self.source.kind != "metric" or self._measuring_since is None:
            return outcome
        return replace(outcome, seconds=time.monotonic() - self._measuring_since)  # matches tell no seconds

    def _verdict(self, steps: Steps, seconds: float) -> TrialState | None:
        """Whether the trial has told enough after so many seconds of steps."""
        counted = steps.after(self.source.warmup)
        found = counted.throughput()
        if found is None or len(counted) < MIN_STEPS:
            return None
        best = self.best()
        known = len(counted) >= INTERVAL_BLOCKS and found.low is not None and found.high is not None
        if best is not None and known and (found.high or 0) < best:
            return "stopped early"
        some = known or seconds > HOPELESS_TIME_SHARE * self.limits().trial
        if best is not None and some and found.mean * HOPELESS_RATIO < best:
            return "stopped early"
        narrow = (
            known
            and len(counted) >= 2 * INTERVAL_BLOCKS
            and (found.high or 0) < NARROW_INTERVAL_RATIO * (found.low or 0)
        )
        if self.source.kind is None:
            return "measured" if seconds > UNLOCKED_TIME_RATIO * self.limits().trial else None
        return "measured" if narrow or seconds > self.limits().trial else None


def outcome_of(settings: dict[str, str], steps: Steps | None, source: StepSource) -> TrialOutcome:
    """With the steps that are there so far."""
    if steps is None:
        return TrialOutcome(settings)
    counted = steps.after(min(source.warmup, max(0, len(steps) - 1)))
    return TrialOutcome(
        settings=settings,
        steps=len(steps),
        seconds=float(steps.seconds.sum()),
        throughput=counted.throughput(),
    )
