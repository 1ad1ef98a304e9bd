"""The trials of the defaults, which decide what is searched and how all others are measured."""

from dataclasses import replace
from typing import NoReturn

from hvscale.comm_tuning.knobs.settings import given_in
from hvscale.comm_tuning.tune.job_profile import job_profile
from hvscale.comm_tuning.tune.job_space import choices, without_orphans
from hvscale.comm_tuning.tune.plan import TrialOutcome
from hvscale.comm_tuning.tune.step_source import MEASURED_BY
from hvscale.comm_tuning.tune.study import TuneStudy
from hvscale.comm_tuning.tune.trial_monitor import outcome_of
from hvscale.core.errors import RankFailedError, UntrustedError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.breakdown import read_recording, require_complete

# A job hangs after this many times the seconds that it took with the defaults, and no sooner than
# the first figure.
MIN_STALL_SECONDS, STALL_RATIO = 10.0, 10
MIN_FIRST_STEP_SECONDS, FIRST_STEP_RATIO = 60.0, 10


def accept_defaults(study: TuneStudy, outcome: TrialOutcome) -> TrialOutcome:
    """The outcome, read by the source that measures all trials.

    Sets the study's limits and facts of the job.

    Raises RankFailedError when the command fails, and UntrustedError when nothing can be compared
    with this trial.
    """
    run = outcome.run
    if outcome.failure is not None:
        raise RankFailedError(f"with the defaults {outcome.problem}", outcome.failure.last_lines)
    if not study.document.space:  # what this profile does not hold would not be searched
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
    """The outcome, as "wrong sums" where the defaults' losses are known to repeat and these
    differ.
    """
    study.compare_losses_of_defaults(outcome.run)
    problem = study.wrong_losses(outcome.run) if outcome.state == "measured" else None
    return replace(outcome, state="wrong sums", problem=problem) if problem is not None else outcome


def set_limits(study: TuneStudy, outcome: TrialOutcome) -> None:
    asked = study.request.limits
    study.limits = replace(study.limits, stall=max(MIN_STALL_SECONDS, STALL_RATIO * outcome.longest_wait))
    if outcome.first_step_after is not None:
        usual = max(MIN_FIRST_STEP_SECONDS, FIRST_STEP_RATIO * outcome.first_step_after)
        study.limits = replace(study.limits, first_step=min(asked.first_step, usual))


def refuse_without_steps(study: TuneStudy, outcome: TrialOutcome) -> NoReturn:
    """Raises UntrustedError: no step was seen."""
    what = outcome.problem if outcome.state == "hung" else "the command has ended"
    looked_for = (
        "what --metric matches"
        if study.source.metric is not None
        else "lines of steps.jsonl, marked steps and collectives"
    )
    raise UntrustedError(
        f"no step of the command was seen ({what}; looked for: {looked_for}). Give --metric REGEX for what the command prints, or "
        f"a longer --first-step-timeout. See {outcome.run.log(0)}"
    )


def decide_space(study: TuneStudy, run: RunFolder) -> None:
    """Decide from the profile of this run which values of which knobs are searched."""
    given = given_in(study.request.options)
    found = choices(study.target(), job_profile(run), study.request.knobs, study.document.fixed, given)
    study.document.space = without_orphans(found)
