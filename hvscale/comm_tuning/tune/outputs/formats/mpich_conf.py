"""mpich.conf: MPICH's control variables and those of the libraries below it.

MPICH 5 reads them from /etc/mpich.conf, and any shell can source them.
"""

import shlex

from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register

FILE = "mpich.conf"
PREFIXES = ("MPIR_CVAR_", "UCX_", "FI_")
HEAD = """\
# For one job: set -a; . FILE; set +a
# For all jobs of a node: MPICH 5 reads it as /etc/mpich.conf; a variable that a job sets overrides it.
"""


def text(tuned: TunedJob) -> str:
    others = tuned.others(*PREFIXES)
    left = f"# Not read by MPICH, so only env.sh sets them: {', '.join(others)}\n" if others else ""
    return HEAD + left + "".join(f"{name}={word}\n" for name, word in tuned.beginning(*PREFIXES).items())


register(
    OutputFormat(
        file=FILE,
        what="MPICH's control variables",
        text=text,
        applies=lambda tuned: tuned.flavour == "mpich",
        use=lambda tuned: f"set -a; . {shlex.quote(tuned.path(FILE))}; set +a",
    )
)
