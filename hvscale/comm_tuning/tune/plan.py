"""The types that a plan of trials yields and receives. A plan decides; it starts no job.

A plan is a generator. It yields the next trial, as a `FreshStart` of the job or a `SameStart` in
the running job, and receives the trial's `TrialOutcome`. Only `run.carry_out` starts jobs, one
after the other. The plan advances while a job runs, inside the launcher's watch. It yields only
data there, so no job can start within another one.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass

from hvscale.comm_tuning.tune.document import TrialState
from hvscale.core.errors import RankFailedError
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate


@dataclass(frozen=True)
class TrialLimits:
    """Limits in seconds: until the first step, between two steps, and for all steps of a trial."""

    first_step: float
    stall: float
    trial: float


@dataclass(frozen=True)
class NextTrial:
    """A trial to run. `throughput_to_beat`: stop early if clearly slower, unless it is None."""

    settings: Mapping[str, str]
    limits: TrialLimits
    throughput_to_beat: float | None = None


@dataclass(frozen=True, kw_only=True)
class FreshStart(NextTrial):
    """Start the job again. `folder`: the name of its run folder in the study's folder."""

    folder: str


@dataclass(frozen=True, kw_only=True)
class SameStart(NextTrial):
    """Continue in the running job; Horovod reads `variables` in its next hvd.init()."""

    variables: Mapping[str, str]


@dataclass(frozen=True)
class TrialOutcome:
    """The result of one trial.

    `run`: its run folder. `seconds`: of all its steps, including the warm-up. `longest_wait`:
    seconds between two steps, as seen from outside. `first_step_after`: seconds from the start of
    the job to its first step, None without a step. `failure`: of a rank.
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
    """The next trial after this outcome (None for the first); None if the plan has ended."""
    try:
        return plan.send(outcome) if outcome is not None else next(plan)
    except StopIteration:
        return None
