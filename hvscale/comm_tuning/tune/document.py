"""tune.json: what a study tried, what it measured, and what it proved."""

from typing import Any, Literal

from pydantic import BaseModel

from hvscale.core.run_folder import Library
from hvscale.core.statistics import Estimate
from hvscale.launch.options import LaunchOptions
from hvscale.profiling.compare import Comparison
from hvscale.studies.document import StudyDocument

StudyState = Literal["searching", "proving", "finished", "interrupted", "failed"]
TrialState = Literal["measured", "stopped early", "crashed", "hung", "wrong sums"]


class Trial(BaseModel):
    """One set of settings, measured. `settings` in the words of --set, none for the defaults; `run`: the run folder's name in the study's folder.

    `start` counts the job's starts: trials with the same one ran in one start. `throughput` is None where nothing could be measured, and
    `problem` says why.
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
    """One knob: the values that were searched, or, with none, why it was left out."""

    knob: str
    values: list[str]
    reason: str


class Pair(BaseModel):
    """The defaults and the winner on fresh starts, one after the other: throughputs and the runs' names in the study's folder."""

    default: float
    tuned: float
    default_run: str
    tuned_run: str


class Proof(BaseModel):
    """`settings`: whose gain is proven. `gain`: the ratio of throughputs over the pairs, 1 for no difference; taken only where its interval is
    above 1."""

    settings: dict[str, str] = {}
    pairs: list[Pair]
    gain: Estimate
    taken: bool


class TuneDocument(StudyDocument):
    """What `hvscale tune --json` prints, by alias, and the study folder's tune.json.

    `launch`: the options of the job. `measured_by`: where the throughput comes from.
    `request`: what was asked of the search itself, with which another one cannot go on in this folder.
    `winner`: the settings to use in the words of --set; empty when the defaults are best, None while that is not known.
    `profile`: the defaults before, the winner after, by message size.
    """

    schema_: Literal["hvscale/tune/2"] = "hvscale/tune/2"
    state: StudyState = "searching"
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
