"""horovodrun.yaml: the settings that `horovodrun --config-file` supports.

Its keys are those of Horovod 0.28, horovod/runner/common/util/config_parser.py.
"""

import shlex
from collections.abc import Callable
from decimal import Decimal

from hvscale.comm_tuning.tune.outputs.commands import uses_horovodrun
from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register
from hvscale.launch import flavours

MIB = 2**20
# horovodrun uses floats for sizes that are not whole MiB, and Horovod reads only integers.
EXACT = 10**15


def mebibytes(word: str) -> str | None:
    size = int(word)
    return plain(Decimal(size) / MIB) if size % MIB == 0 or size < EXACT else None


def plain(number: Decimal) -> str:
    """Decimal notation, because YAML 1.1 would read an exponent as a string."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


# The key of each variable, and the function that writes its value; None if that is impossible.
KEYS: dict[str, tuple[str, Callable[[str], str | None]]] = {
    "HOROVOD_FUSION_THRESHOLD": ("fusion_threshold_mb", mebibytes),
    "HOROVOD_CYCLE_TIME": ("cycle_time_ms", lambda word: plain(Decimal(word))),
    "HOROVOD_CACHE_CAPACITY": ("cache_capacity", str),
    "HOROVOD_HIERARCHICAL_ALLREDUCE": ("hierarchical_allreduce", {"1": "true", "0": "false"}.get),
}


def text(tuned: TunedJob) -> str:
    params, left = {}, []
    for name, word in tuned.variables.items():
        key, write = KEYS.get(name, ("", lambda word: None))
        written = write(word)
        if written is None:
            left.append(name)
        else:
            params[key] = written
    parts = ["# For horovodrun --config-file; the command line overrides it.\n"]
    if left:
        parts.append(f"# horovodrun has no keys for these, so env.sh sets them: {', '.join(sorted(left))}\n")
    parts.append(f"controller: {flavours.get(tuned.flavour).horovod_controller}\n")
    if params:
        parts.append("params:\n" + "".join(f"  {key}: {written}\n" for key, written in params.items()))
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
