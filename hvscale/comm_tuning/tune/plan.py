"""What a plan of trials yields and receives: it decides, and it starts nothing itself.

A plan is a generator. It yields the next trial, as a `FreshStart` of the job or a `SameStart`
within the job that runs, and receives the trial's `TrialOutcome`. Only `jobs.carry_out` starts
jobs, one after the other. The plan advances while a job still runs, inside the launcher's watch;
what it yields there is data, so no job can be started from within another one.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass

from hvscale.comm_tuning.tune.document import TrialState
from hvscale.core.errors import RankFailedError
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate


@dataclass(frozen=True)
class TrialLimits:
    """Limits in seconds.

    `first_step`: from the start to its first step; `stall`: between two steps; `trial`: for the
    steps of one trial.
    """

    first_step: float
    stall: float
    trial: float


@dataclass(frozen=True)
class NextTrial:
    """A trial to run.

    `throughput_to_beat`: stop early when clearly slower; None measures to the end.
    """

    settings: Mapping[str, str]
    limits: TrialLimits
    throughput_to_beat: float | None = None


@dataclass(frozen=True, kw_only=True)
class FreshStart(NextTrial):
    """Start the job anew; `folder` is the name of its run folder in the study's folder."""

    folder: str


@dataclass(frozen=True, kw_only=True)
class SameStart(NextTrial):
    """Continue in the job that runs; Horovod reads `variables` when it is initialised again."""

    variables: Mapping[str, str]


@dataclass(frozen=True)
class TrialOutcome:
    """What one trial gave.

    `run`: the run folder that holds it; `seconds`: of all its steps, warm-up included;
    `longest_wait`: seconds between two steps, as seen from outside; `first_step_after`: seconds
    from the start of the job to its first step, None without one; `failure`: the failed rank.
    """

    settings: Mapping[str, str]
    run: RunFolder
    state: TrialState = "measured"
    steps: int = 0
    seconds: float = 0.0
    throughput: Estimate | None = None
    problem: str | None = None
    longest_wait: float = 0.0
    first_step_after: float | None = None
    failure: RankFailedError | None = None


Plan = Generator[FreshStart | SameStart, TrialOutcome, None]
# A part of a plan that runs one trial and returns its outcome.
OneTrial = Generator[FreshStart | SameStart, TrialOutcome, TrialOutcome]


def advance(plan: Plan, outcome: TrialOutcome | None) -> FreshStart | SameStart | None:
    """The next trial after this outcome, None for the first; None when the plan has ended."""
    try:
        return plan.send(outcome) if outcome is not None else next(plan)
    except StopIteration:
        return None
