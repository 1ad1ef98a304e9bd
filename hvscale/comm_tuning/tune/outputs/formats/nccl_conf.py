"""nccl.conf: NCCL's variables in its own file, which NCCL 2.23 and later find by NCCL_CONF_FILE, and all as /etc/nccl.conf."""

import shlex

from hvscale.comm_tuning.tune.outputs.output import Output, register
from hvscale.comm_tuning.tune.outputs.tuned import Tuned

FILE = "nccl.conf"
PREFIX = "NCCL_"


def text(tuned: Tuned) -> str:
    head = (
        "# NCCL 2.23 and later read this file where the variable NCCL_CONF_FILE names it; the environment goes first.\n"
    )
    return head + "".join(f"{name}={word}\n" for name, word in tuned.beginning(PREFIX).items())


register(
    Output(
        file=FILE,
        what="NCCL's settings",
        text=text,
        applies=lambda tuned: bool(tuned.beginning(PREFIX)),
        use=lambda tuned: f"export NCCL_CONF_FILE={shlex.quote(tuned.path(FILE))}",
    )
)
