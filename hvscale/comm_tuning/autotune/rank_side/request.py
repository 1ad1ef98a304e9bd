"""What the ranks are asked to tune: one environment variable, the same for all ranks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hvscale.comm_tuning.autotune.rank_side.horovod_knobs import CYCLE, THRESHOLD
from hvscale.comm_tuning.collectives.broadcast import ALGORITHM_VARIABLE

VARIABLE = "HVSCALE_AUTOTUNE"
# Of the request and the messages between ranks. All ranks must have the same.
VERSION = 3

Settings = dict[str, str]  # values by knob, as for --set; empty for the defaults


def words(settings: Settings) -> str:
    """The settings as for --set."""
    return " ".join(f"{knob}={value}" for knob, value in settings.items())


@dataclass(frozen=True)
class Variables:
    """The variables of settings, by what changes them: Horovod, hvscale's broadcast, or MPI."""

    horovod: dict[str, str]
    broadcast: str  # the algorithm; "" for the job's own
    mpi: dict[str, str]

    @property
    def reach_mpi(self) -> bool:
        """Whether a change reaches MPI's communicators, which Horovod then creates anew."""
        return bool(self.broadcast or self.mpi)


def split(variables: Mapping[str, str]) -> Variables:
    """Sort the variables."""
    own = {name: word for name, word in variables.items() if name in (THRESHOLD, CYCLE)}
    others = {name: word for name, word in variables.items() if name not in own}
    return Variables(own, others.pop(ALGORITHM_VARIABLE, ""), others)


@dataclass(frozen=True)
class Remembered:
    """Settings that an earlier job found; `proven`: it also proved that they are faster."""

    settings: Settings
    proven: bool


@dataclass(frozen=True)
class RankRequest:
    """The request.

    `steps`: of the tuned phase. `folder`: where rank 0 writes result.json. `moves`: by knob and
    value, the variables that set it. `numbers`: the integers behind the names of an MPI library's
    values. `library`, `link`: as in a `Fingerprint`. `remembered`: fingerprint, settings and
    whether they are proven, of earlier runs that may be this job's.
    """

    steps: int
    folder: str
    library: str
    link: str = ""
    moves: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    numbers: Sequence[tuple[str, str, int]] = ()
    remembered: Sequence[Mapping[str, Any]] = ()
    version: int = VERSION

    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> "RankRequest":
        """Raises ValueError for a request of another version of hvscale, or none at all."""
        found = json.loads(text)
        if not isinstance(found, dict) or found.get("version") != VERSION:
            raise ValueError("the job was started by another version of hvscale")
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in found.items() if name in known})

    def variables(self, settings: Settings) -> dict[str, str]:
        """The variables that make these settings. Raises KeyError for an unknown knob or value."""
        found: dict[str, str] = {}
        for knob, value in settings.items():
            found |= self.moves[knob][value]
        return found
