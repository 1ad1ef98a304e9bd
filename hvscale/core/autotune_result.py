"""The result of tuning a job while it trained: `autotune/result.json` of its run folder."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hvscale.core.documents import VersionedDocument, from_json
from hvscale.core.files import read_bytes
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate, estimate
from hvscale.core.units import human_bytes, human_share

FOLDER, FILE = "autotune", "result.json"
AutotuneState = Literal["tuned", "defaults", "unfinished", "not tuned"]
Positive = Annotated[float, Field(gt=0)]


class Fingerprint(BaseModel):
    """The jobs that settings are remembered for.

    `gradients`: a digest of the gradients' sizes and types. `link`: as for --link, or empty.
    """

    model_config = ConfigDict(frozen=True)

    gradients: Annotated[str, Field(pattern=r"[0-9a-f]{16}")]
    gradient_bytes: int
    tensors: int
    np: int
    ranks_per_node: int
    library: str
    link: str = ""


class AutotuneTrial(BaseModel):
    """A candidate: its step time over that of the best settings before it, and whether it was
    kept.
    """

    settings: dict[str, str]
    steps: int
    ratio: float
    kept: bool


class ProposedKnob(BaseModel):
    """A knob to try at the next start, and what it does."""

    knob: str
    reason: str


class NextStart(BaseModel):
    """Knobs that the job could not change while it ran, and the command that tries them."""

    knobs: list[ProposedKnob]
    command: str


class AutotuneResult(VersionedDocument):
    """What rank 0 wrote at the end of the tuning.

    `state`: "tuned": `settings` are in effect, with a proven gain. `remembered`: they come from an
    earlier job. `unproven`: the best settings of a search that the end of the program interrupted.
    `drops_remembered`: those of an earlier job do not win, or cannot be used. `pairs`: seconds of a
    step with the defaults and with the settings. `steps`: of the tuned phase. `lost_seconds`: what
    the phase cost beyond the same steps with the defaults, negative if it gained.
    `switch_seconds`: the median cost of a change in place, and of one that restarts Horovod.
    `wait_share`: how much of a step with the defaults ranks waited for communication; None if
    unknown. `largest_message_bytes`: of the messages that Horovod can make of the gradients.
    `live_knobs`: those that this job could change. `nccl`: it carried the gradients.
    `next_start`: None if ranks hardly waited for communication, or no other knob can help.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    schema_: Literal["hvscale/autotune/1"] = "hvscale/autotune/1"
    state: AutotuneState
    reason: str = ""
    settings: dict[str, str] = {}
    unproven: dict[str, str] = {}
    remembered: bool = False
    drops_remembered: bool = False
    pairs: list[tuple[Positive, Positive]] = []
    fingerprint: Fingerprint | None = None
    steps: int = 0
    default_seconds: float = 0
    lost_seconds: float = 0
    switches: int = 0
    switch_seconds: dict[str, float] = {}
    trials: list[AutotuneTrial] = []
    wait_share: float | None = None
    largest_message_bytes: int = 0
    live_knobs: list[str] = []
    nccl: bool = False
    next_start: NextStart | None = None

    @property
    def waiting(self) -> str:
        """How much communication there is to save, in words."""
        return (
            f"ranks wait for communication in {human_share(self.wait_share or 0)} % of a step, with messages of up to "
            f"{human_bytes(self.largest_message_bytes)}"
        )

    @property
    def gain(self) -> Estimate | None:
        """How many times as fast steps are as with the defaults; None without a proof."""
        return estimate([default / tuned for default, tuned in self.pairs]) if self.pairs else None


def read_autotune_result(run: RunFolder) -> AutotuneResult | None:
    """The result of a run; None if there is none. Raises ValueError if it is damaged."""
    return read_result_file(run.path / FOLDER / FILE)


def read_result_file(path: Path) -> AutotuneResult | None:
    """The result in a file; None if there is none. Raises ValueError if it is damaged."""
    try:
        content = read_bytes(path)
    except OSError:
        return None
    try:
        return from_json(AutotuneResult, content)
    except ValidationError as error:
        raise ValueError(f"{path} is not a result of --autotune, so it is ignored") from error
