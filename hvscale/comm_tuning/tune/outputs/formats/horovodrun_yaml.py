"""horovodrun.yaml: what `horovodrun --config-file` can say, in the keys of Horovod 0.28's horovod/runner/common/util/config_parser.py."""

import shlex
from collections.abc import Callable
from decimal import Decimal

from hvscale.comm_tuning.tune.outputs.commands import uses_horovodrun
from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, register
from hvscale.comm_tuning.tune.outputs.tuned_job import TunedJob
from hvscale.launch import flavours

MIB = 2**20
# horovodrun computes in floats what is no whole MiB, and Horovod reads whole digits only.
EXACT = 10**15


def mebibytes(word: str) -> str | None:
    size = int(word)
    return plain(Decimal(size) / MIB) if size % MIB == 0 or size < EXACT else None


def plain(number: Decimal) -> str:
    """Without an exponent, which YAML 1.1 would read as a word."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


# A section and a key for each variable, and the value's word there; None for one that cannot be said.
KEYS: dict[str, tuple[str, Callable[[str], str | None]]] = {
    "HOROVOD_FUSION_THRESHOLD": ("fusion_threshold_mb", mebibytes),
    "HOROVOD_CYCLE_TIME": ("cycle_time_ms", lambda word: plain(Decimal(word))),
    "HOROVOD_CACHE_CAPACITY": ("cache_capacity", str),
    "HOROVOD_HIERARCHICAL_ALLREDUCE": ("hierarchical_allreduce", {"1": "true", "0": "false"}.get),
}


def text(tuned: TunedJob) -> str:
    params, left = {}, []
    for name, word in tuned.variables.items():
        key, say = KEYS.get(name, ("", lambda word: None))
        said = say(word)
        if said is None:
            left.append(name)
        else:
            params[key] = said
    parts = ["# For horovodrun --config-file; the command line goes first.\n"]
    if left:
        parts.append(f"# It has no words for these, which env.sh sets: {', '.join(sorted(left))}\n")
    parts.append(f"controller: {flavours.get(tuned.flavour).horovod_controller}\n")
    if params:
        parts.append("params:\n" + "".join(f"  {key}: {said}\n" for key, said in params.items()))
    return "".join(parts)


register(
    OutputFormat(
        file="horovodrun.yaml",
        what="Horovod's own settings, for horovodrun",
        text=text,
        applies=uses_horovodrun,
        use=lambda tuned: f"horovodrun --config-file {shlex.quote(tuned.path('horovodrun.yaml'))} ...",
    )
)
