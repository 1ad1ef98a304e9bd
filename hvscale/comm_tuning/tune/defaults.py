"""The trial of the defaults: it decides the search space, the limits and the step source."""

from dataclasses import replace
from typing import NoReturn

from hvscale.comm_tuning.knobs.settings import given_in
from hvscale.comm_tuning.tune.job_profile import job_profile
from hvscale.comm_tuning.tune.job_space import choices, without_orphans
from hvscale.comm_tuning.tune.plan import TrialOutcome
from hvscale.comm_tuning.tune.steps import MEASURED_BY
from hvscale.comm_tuning.tune.study import TuneStudy
from hvscale.comm_tuning.tune.trial_monitor import outcome_of
from hvscale.core.errors import RankFailedError, UntrustedError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.breakdown import read_recording, require_complete

# Timeouts: this ratio to the time with the defaults, but at least the seconds.
MIN_STALL_SECONDS, STALL_RATIO = 10.0, 10
MIN_FIRST_STEP_SECONDS, FIRST_STEP_RATIO = 60.0, 10


def accept_defaults(study: TuneStudy, outcome: TrialOutcome) -> TrialOutcome:
    """Set the study's limits and the facts of the job; return the outcome by the locked source.

    Raises RankFailedError if the command fails, and UntrustedError if no trial can be compared with
    this one.
    """
    run = outcome.run
    if outcome.failure is not None:
        raise RankFailedError(f"with the defaults {outcome.problem}", outcome.failure.last_lines)
    if not study.document.space:  # knobs for missing messages would not be searched
        require_complete(run, read_recording(run).incomplete)
    if outcome.steps:
        study.source.lock(run)
        if not study.takes_commands:
            whole = outcome_of(run, {}, study.source.steps(run), study.source)
            outcome = replace(outcome, steps=whole.steps, throughput=whole.throughput)
    if outcome.throughput is None or study.source.kind is None:
        refuse_without_steps(study, outcome)
    outcome = check_losses(study, outcome)
    if outcome.state != "measured":
        raise UntrustedError(
            f"with the defaults: {outcome.problem}; no trial can be compared with them. See {run.path}"
        )
    set_limits(study, outcome)
    steps = study.source.steps(run)
    study.document.unit = steps.unit if steps is not None else None
    study.document.measured_by = MEASURED_BY[study.source.kind]
    study.check_library(run)
    record = run.read()
    study.document.host, study.document.transport = record.host, record.library.transport
    return outcome


def check_losses(study: TuneStudy, outcome: TrialOutcome) -> TrialOutcome:
    """The outcome, with the state "wrong sums" if the defaults' losses repeat and these differ."""
    study.compare_losses_of_defaults(outcome.run)
    problem = study.wrong_losses(outcome.run) if outcome.state == "measured" else None
    return replace(outcome, state="wrong sums", problem=problem) if problem is not None else outcome


def set_limits(study: TuneStudy, outcome: TrialOutcome) -> None:
    asked = study.request.limits
    study.limits = replace(study.limits, stall=max(MIN_STALL_SECONDS, STALL_RATIO * outcome.longest_wait))
    if outcome.first_step_after is not None:
        limit = max(MIN_FIRST_STEP_SECONDS, FIRST_STEP_RATIO * outcome.first_step_after)
        study.limits = replace(study.limits, first_step=min(asked.first_step, limit))


def refuse_without_steps(study: TuneStudy, outcome: TrialOutcome) -> NoReturn:
    """Raises UntrustedError because no step was seen."""
    what = outcome.problem if outcome.state == "hung" else "the command ended"
    looked_for = (
        "what --metric matches" if study.source.metric is not None else "steps.jsonl, marked steps and collectives"
    )
    raise UntrustedError(
        f"no step of the command was seen ({what}; looked for: {looked_for}). Give --metric REGEX for what the command prints, or "
        f"a longer --first-step-timeout; see {outcome.run.log(0)}"
    )


def decide_space(study: TuneStudy, run: RunFolder) -> None:
    """Decide from the profile of this run which knobs and values to search."""
    given = given_in(study.request.options)
    found = choices(study.target(), job_profile(run), study.request.knobs, study.document.fixed, given)
    study.document.space = without_orphans(found)
