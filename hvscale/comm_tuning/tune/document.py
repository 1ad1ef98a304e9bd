"""tune.json: the trials of a study, and its proof."""

from math import inf
from typing import Any, Literal

from pydantic import BaseModel, field_validator

from hvscale.core.run_folder import Library
from hvscale.core.statistics import Estimate
from hvscale.launch.options import LaunchOptions
from hvscale.profiling.compare import Comparison
from hvscale.studies.document import StudyDocument

TrialState = Literal["measured", "stopped early", "crashed", "hung", "wrong sums"]


class Trial(BaseModel):
    """One measurement of one set of settings.

    `settings`: as for --set, empty for the defaults. `run`: the name of the run folder. `start`:
    the number of the job's start, which several trials may share. `throughput`: None if nothing
    could be measured; `problem` says why.
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

    @field_validator("throughput")
    @classmethod
    def positive(cls, throughput: Estimate | None) -> Estimate | None:
        if throughput is not None and not 0 < throughput.mean < inf:
            raise ValueError(f"{throughput.mean} is not a throughput")
        return throughput


class KnobChoice(BaseModel):
    """One knob: the `values` to search, or none and the `reason`."""

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
    """The measured pairs, and their result.

    `settings`: the best of the search. `gain`: their throughput over that of the defaults.
    `accepted`: all pairs are measured, and the whole interval of the gain is above 1.
    """

    settings: dict[str, str] = {}
    pairs: list[Pair]
    gain: Estimate
    accepted: bool


class TuneDocument(StudyDocument):
    """tune.json, which `hvscale tune --json` prints.

    `launch`: the launch options of the job. `fixed`: settings of every trial. `request`: options of
    the search that a resuming call must not change. `measured_by`: the source of the throughput.
    `space`: every knob, with the values to search. `winner`: the settings to use, as for --set;
    empty if the defaults are best, None while undecided. `profile`: the communication by message
    size, with the defaults before and with the winner after.
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
    searched: int | None = None
    """How many trials the search made, without those that measure its best settings once more."""
    proof: Proof | None = None
    winner: dict[str, str] | None = None
    failed_in_proof: list[dict[str, str]] = []
    """Settings with which a start of the proof failed: they never win."""
    profile: Comparison | None = None
