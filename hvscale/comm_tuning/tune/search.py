"""The search: a plan that chooses each next trial and records its outcome. It starts no job."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from hvscale.comm_tuning.knobs.library import Target
from hvscale.comm_tuning.tune import scores
from hvscale.comm_tuning.tune.defaults import accept_defaults, decide_space
from hvscale.comm_tuning.tune.document import Trial
from hvscale.comm_tuning.tune.job_space import JobSettings, JobSpace, in_job
from hvscale.comm_tuning.tune.plan import FreshStart, OneTrial, Plan, SameStart, TrialOutcome
from hvscale.comm_tuning.tune.study import TuneStudy, start_number
from hvscale.launch import flavours
from hvscale.launch.environment import has_public_value

if TYPE_CHECKING:
    from hvscale.comm_tuning.tune.sampler import Suggestion

DEFAULTS_EVERY = 8  # trials: the machine's speed drifts, and trials are compared with the last run of the defaults
# Observed with Horovod 0.28.1 (common/parameter_manager.cc): a value set by one of these variables
# stays until another value is set, even if the variable is removed. Once both have been set, the
# next hvd.init() of the process ends it with SIGSEGV.
NEVER_BOTH = {"fusion_threshold": "HOROVOD_FUSION_THRESHOLD", "cycle_time": "HOROVOD_CYCLE_TIME"}
MAX_FOLLOW_UPS = 5  # trials after the first of a start; other knobs need a fresh start and must get their turn


class TuneProgress(Protocol):
    """Shows the progress of a study."""

    def trial_begins(self, settings: JobSettings) -> None: ...

    def trial_ended(self, trial: Trial, ratio: float) -> None:
        """`ratio`: the trial's throughput over the defaults'."""

    def pair_begins(self, settings: JobSettings, number: int, pairs: int) -> None:
        """Called before each pair of the proof."""


class InProcessRestart:
    """The knobs that hvd.shutdown() and another hvd.init() can change within one start.

    `start`: its number, which decides which knob of `NEVER_BOTH` may change if both could.
    """

    def __init__(self, target: Target, started_with: Mapping[str, str], start: int) -> None:
        """`started_with`: variables of the start in addition to the target's environment."""
        self.target, self.start, self.follow_ups = target, start, 0
        self.now = {
            name: value
            for name, value in {**target.environment, **started_with}.items()
            if name.startswith("HOROVOD_") and has_public_value(name)  # the values are written to a file
        }

    def free(self, space: JobSpace) -> frozenset[str]:
        """The knobs that the next trial of this start may change; empty if the start must end."""
        already_set = [knob for knob, variable in NEVER_BOTH.items() if variable in self.now]
        if self.follow_ups == MAX_FOLLOW_UPS or len(already_set) == len(NEVER_BOTH):
            return frozenset()
        kept = next(iter(already_set), list(NEVER_BOTH)[self.start % len(NEVER_BOTH)])
        excluded = set(NEVER_BOTH) - {kept}
        return frozenset(one.knob for one in space.dimensions if one.at_init and one.knob not in excluded)

    def variables(self, space: JobSpace, settings: JobSettings, wanted: Mapping[str, str]) -> dict[str, str]:
        """The variables that Horovod must read for these settings.

        `wanted`: the variables of a fresh start with these settings.
        """
        self.follow_ups += 1
        for dimension in space.dimensions:
            if dimension.at_init:
                for spelling in in_job(self.target, dimension.knob):
                    for name, default in spelling.variables.items():
                        if name in wanted:
                            self.now[name] = wanted[name]
                        elif name in self.now:
                            self.now[name] = self.target.environment.get(name, default)
        return dict(self.now)


class Search:
    """The trials of one call of `hvscale tune`, after those of earlier calls in the document."""

    def __init__(self, study: TuneStudy, progress: TuneProgress) -> None:
        self.study, self.progress = study, progress
        self.began = time.monotonic()

    def plan(self) -> Plan:
        """Run trials until the limit of trials or time, or until nothing is left to try.

        The defaults come first, and again every `DEFAULTS_EVERY` trials. At the end the finalists
        are measured once more in fresh starts, because the best of many trials is partly luck.
        """
        trials = self.study.document.trials
        earlier = len(trials)
        while not self.is_over():
            sampler = self.study.sampler
            if sampler is None or len(trials) == earlier or trials_since_defaults(trials) >= DEFAULTS_EVERY:
                yield from self.start({})
                continue
            suggestion = sampler.ask()
            if suggestion is None:
                break
            yield from self.start(suggestion.settings, suggestion)
        if len(trials) > earlier:
            # Losses that differ may have added a trial of the defaults beyond the limit.
            self.study.document.searched = min(len(trials), self.study.request.trials or len(trials))
        yield from self.repeat_finalists(earlier)

    def is_over(self) -> bool:
        request, trials = self.study.request, len(self.study.document.trials)
        is_late = request.minutes is not None and time.monotonic() - self.began > 60 * request.minutes
        return trials > 0 and (is_late or (request.trials is not None and trials >= request.trials))

    def repeat_finalists(self, earlier: int) -> Plan:
        """Measure each finalist again, after the defaults. `earlier`: trials of earlier calls."""
        trials = self.study.document.trials
        while True:
            found, finalists = scores.ratios_by_settings(trials), scores.finalists(trials)
            measured_once = [settings for settings in finalists if len(found[settings]) == 1]
            if len(finalists) < 2 or not measured_once:
                return
            # Since an earlier call, the machine may have become faster or slower.
            has_defaults = any(not trial.settings for trial in trials[earlier:])
            if not has_defaults or (trials[-1].settings and len(measured_once) == len(finalists)):
                yield from self.start({}, alone=True)
            yield from self.start(dict(sorted(measured_once[0])), alone=True)

    def start(self, settings: JobSettings, suggestion: "Suggestion | None" = None, alone: bool = False) -> Plan:
        """A fresh start with these settings, and more trials in it if the job can change settings.

        `alone`: no more trials in this start, and no early stop.
        """
        folder = self.study.next_start()
        best = scores.best_throughput(self.study.document.trials) if settings and not alone else None
        fresh = FreshStart(settings, self.study.limits, best, folder=folder)
        outcome = yield from self.trial(fresh, suggestion)
        restart = None
        while not alone and self.can_continue(outcome):
            restart = restart or InProcessRestart(
                self.study.target(), self.study.variables(settings), start_number(folder)
            )
            following = self.follow_up(restart, outcome)
            if following is None:
                return
            outcome = yield from self.trial(*following)

    def can_continue(self, outcome: TrialOutcome) -> bool:
        """Whether another trial may follow in the same start."""
        can_change = self.study.takes_commands and flavours.get(self.study.request.options.mpi).has_mpi
        return outcome.state == "measured" and can_change and not self.is_over()

    def follow_up(self, restart: InProcessRestart, outcome: TrialOutcome) -> "tuple[SameStart, Suggestion] | None":
        """The next trial of this start; None if the start must end."""
        study, sampler = self.study, self.study.sampler
        free = restart.free(sampler.space) if sampler is not None else None
        suggestion = sampler.ask(outcome.settings, free) if sampler is not None and free else None
        if sampler is None or suggestion is None:
            return None
        wanted = study.variables(suggestion.settings)
        variables = restart.variables(sampler.space, suggestion.settings, wanted)
        best = scores.best_throughput(study.document.trials)
        return SameStart(suggestion.settings, study.limits, best, variables=variables), suggestion

    def trial(self, following: FreshStart | SameStart, suggestion: "Suggestion | None") -> OneTrial:
        """Run one trial and record its outcome; an interrupted suggestion may come again."""
        self.progress.trial_begins(following.settings)
        sampler = self.study.sampler
        outcome = yield following
        outcome = yield from self.judge(outcome, isinstance(following, FreshStart))
        trial, ratio = self.record(outcome)
        if sampler is not None and suggestion is not None:
            sampler.tell(suggestion, ratio)
        self.progress.trial_ended(trial, ratio)
        return outcome

    def judge(self, outcome: TrialOutcome, is_first: bool) -> OneTrial:
        """The outcome, with the state "wrong sums" if the losses show them.

        `is_first`: in its start. Only such a trial begins with the same parameters as the defaults.
        Losses are compared only if those of the defaults repeat. If that is unknown, the defaults
        run again.
        """
        if not outcome.settings:
            return accept_defaults(self.study, outcome)
        if not is_first or outcome.state not in ("measured", "stopped early"):
            return outcome
        problem = self.study.wrong_losses(outcome.run)
        if problem is not None and self.study.losses_repeat is None:
            yield from self.start({}, alone=True)
        if problem is not None and self.study.losses_repeat:
            return replace(outcome, state="wrong sums", problem=problem)
        return outcome

    def record(self, outcome: TrialOutcome) -> tuple[Trial, float]:
        """Add the trial to the document; return it with its ratio to the defaults.

        The first trial decides the search space.
        """
        document = self.study.document
        trial = Trial(
            number=len(document.trials),
            settings=dict(outcome.settings),
            state=outcome.state,
            run=outcome.run.path.name,
            start=start_number(outcome.run.path.name),
            steps=outcome.steps,
            seconds=outcome.seconds,
            throughput=outcome.throughput,
            problem=outcome.problem,
        )
        document.trials.append(trial)
        ratio = scores.ratios(document.trials)[-1]
        if not document.space:
            decide_space(self.study, outcome.run)
        self.study.write("running")
        if self.study.sampler is None:
            self.study.begin_sampling()
        return trial, ratio


def trials_since_defaults(trials: list[Trial]) -> int:
    return next(back for back, trial in enumerate(reversed(trials)) if not trial.settings)
