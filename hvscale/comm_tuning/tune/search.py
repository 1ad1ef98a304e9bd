"""The search: which trial comes next, and what its outcome means for the study.

A plan; it starts no job.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from hvscale.comm_tuning.tune import scores
from hvscale.comm_tuning.tune.defaults import accept_defaults, decide_space
from hvscale.comm_tuning.tune.document import Trial
from hvscale.comm_tuning.tune.in_process_restart import InProcessRestart
from hvscale.comm_tuning.tune.job_space import JobSettings
from hvscale.comm_tuning.tune.plan import FreshStart, OneTrial, Plan, SameStart, TrialOutcome
from hvscale.comm_tuning.tune.study import TuneStudy, start_number
from hvscale.launch import flavours

if TYPE_CHECKING:
    from hvscale.comm_tuning.tune.sampler import Suggestion

DEFAULTS_EVERY = 8  # trials: the machine's speed may drift, and a trial is compared with the last one of the defaults


class TuneProgress(Protocol):
    """Who shows how the study goes on."""

    def trial_begins(self, settings: JobSettings) -> None: ...

    def trial_ended(self, trial: Trial, ratio: float) -> None:
        """`ratio`: of its throughput to the defaults'."""

    def pair_begins(self, settings: JobSettings, number: int, pairs: int) -> None:
        """Of the proof."""


class Search:
    """The trials of one call of `hvscale tune`; those of earlier calls are in the study's
    document.
    """

    def __init__(self, study: TuneStudy, progress: TuneProgress) -> None:
        self.study, self.progress = study, progress
        self.began = time.monotonic()

    def plan(self) -> Plan:
        """Trials until their number or time is used up, or nothing is left to try.

        The defaults come first, and again every `DEFAULTS_EVERY` trials. The finalists are measured
        once more at the end, on fresh starts: the best of many trials was also the luckiest.
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
        yield from self.repeat_finalists()

    def is_over(self) -> bool:
        request, trials = self.study.request, len(self.study.document.trials)
        is_late = request.minutes is not None and time.monotonic() - self.began > 60 * request.minutes
        return trials > 0 and (is_late or (request.trials is not None and trials >= request.trials))

    def repeat_finalists(self) -> Plan:
        trials = self.study.document.trials
        while True:
            found, finalists = scores.scores(trials), scores.finalists(trials)
            measured_once = [settings for settings in finalists if len(found[settings]) == 1]
            if len(finalists) < 2 or not measured_once:
                return
            if trials[-1].settings and len(measured_once) == len(finalists):
                yield from self.start({}, alone=True)
            yield from self.start(dict(sorted(measured_once[0])), alone=True)

    def start(self, settings: JobSettings, suggestion: "Suggestion | None" = None, alone: bool = False) -> Plan:
        """A fresh start with these settings, with further trials where the job can change them.

        `alone`: no further trials, and this one is measured to its end even when it is slower than
        the best.
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
        """The next trial of this start, which can change only some knobs; None if it must end."""
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
        """Run one trial and record its outcome; a suggestion that gets none is free to come
        again.
        """
        self.progress.trial_begins(following.settings)
        sampler, is_told = self.study.sampler, False
        try:
            outcome = yield following
            outcome = yield from self.judge(outcome, isinstance(following, FreshStart))
            trial, ratio = self.record(outcome)
            if sampler is not None and suggestion is not None:
                sampler.tell(suggestion, ratio)
            is_told = True
        finally:
            if sampler is not None and suggestion is not None and not is_told:
                sampler.forget(suggestion)
        self.progress.trial_ended(trial, ratio)
        return outcome

    def judge(self, outcome: TrialOutcome, is_first: bool) -> OneTrial:
        """The outcome, as "wrong sums" where the losses show them.

        Only the first trial of a start begins like the defaults.

        Losses show something only where those of the defaults repeat. Where that is not known yet,
        the defaults run again.
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
        """Add the trial to the document; returns it with its ratio to the defaults.

        The first one decides what is searched.
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
