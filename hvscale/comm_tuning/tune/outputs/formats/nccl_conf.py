"""nccl.conf: NCCL's variables in its own file.

NCCL 2.23 and later find it by NCCL_CONF_FILE, all releases as /etc/nccl.conf.
"""

import shlex

from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register

FILE = "nccl.conf"
PREFIX = "NCCL_"


def text(tuned: TunedJob) -> str:
    head = "# NCCL 2.23 and later read the file that the variable NCCL_CONF_FILE names; the environment overrides it.\n"
    return head + "".join(f"{name}={word}\n" for name, word in tuned.beginning(PREFIX).items())


register(
    OutputFormat(
        file=FILE,
        what="NCCL's settings",
        text=text,
        applies=lambda tuned: bool(tuned.beginning(PREFIX)),
        use=lambda tuned: f"export NCCL_CONF_FILE={shlex.quote(tuned.path(FILE))}",
    )
)
