"""tune.json: what a study tried, what it measured, and what it proved."""

from typing import Any, Literal

from pydantic import BaseModel

from hvscale.core.run_folder import Library
from hvscale.core.statistics import Estimate
from hvscale.launch.options import LaunchOptions
from hvscale.profiling.compare import Comparison
from hvscale.studies.document import StudyDocument

TrialState = Literal["measured", "stopped early", "crashed", "hung", "wrong sums"]


class Trial(BaseModel):
    """One measurement of one set of settings.

    `settings`: as values of --set, empty for the defaults; `run`: the name of the run folder in the
    study's folder; `start`: counts the starts of the job, so trials with the same number ran in one
    start; `throughput`: None where nothing could be measured, and `problem` says why.
    """

    number: int
    settings: dict[str, str]
    state: TrialState
    run: str
    start: int
    steps: int
    seconds: float
    throughput: Estimate | None = None
    problem: str | None = None


class KnobChoice(BaseModel):
    """One knob: the `values` that are searched, or none of them and the `reason`."""

    knob: str
    values: list[str]
    reason: str


class Pair(BaseModel):
    """Throughputs of the defaults and the best settings on fresh starts, and their run folders."""

    default: float
    tuned: float
    default_run: str
    tuned_run: str


class Proof(BaseModel):
    """The pairs that were measured, and what they show.

    `settings`: the best of the search; `gain`: the ratio of their throughput to the defaults', 1
    for no difference; `accepted`: whether its whole interval is above 1, with all pairs measured.
    """

    settings: dict[str, str] = {}
    pairs: list[Pair]
    gain: Estimate
    accepted: bool


class TuneDocument(StudyDocument):
    """What `hvscale tune --json` prints, by alias, and the study folder's tune.json.

    `launch`: the options of the job. `fixed`: settings that every trial has. `request`: the options
    of the search, which must be the same when the study is resumed. `measured_by`: where the
    throughput comes from. `space`: every knob, with the values that are searched. `winner`: the
    settings to use, as values of --set; empty when the defaults are best, None while that is not
    known. `profile`: the communication by message size, the defaults before and the winner after.
    """

    schema_: Literal["hvscale/tune/2"] = "hvscale/tune/2"
    command: list[str]
    np: int
    launch: LaunchOptions
    fixed: dict[str, str] = {}
    request: dict[str, Any] = {}
    unit: str | None = None
    measured_by: str | None = None
    library: Library | None = None
    transport: str | None = None
    space: list[KnobChoice] = []
    trials: list[Trial] = []
    proof: Proof | None = None
    winner: dict[str, str] | None = None
    profile: Comparison | None = None
