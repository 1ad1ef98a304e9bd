"""openmpi-coll-rules.conf: the algorithms as rules, for communicators of the job's size or larger.

Parameters force an algorithm on every communicator. With these rules, smaller communicators keep
the library's own choice: their rule (size 0) is empty.
"""

import shlex

from hvscale.comm_tuning.collectives.tables.formats.openmpi import RULES_VARIABLE, SizeRule, format_rules
from hvscale.comm_tuning.knobs.libraries.openmpi import TUNED_FIRST
from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register

FILE = "openmpi-coll-rules.conf"
PREFIX = "OMPI_MCA_coll_tuned_"
COLLECTIVES = ("allreduce", "bcast")


def chosen(tuned: TunedJob) -> dict[str, tuple[str, str]]:
    """For each collective the number of its algorithm and its segment size in bytes.

    0 bytes: the algorithm's own segment size.
    """
    found = {}
    for name in COLLECTIVES:
        algorithm = tuned.variables.get(f"{PREFIX}{name}_algorithm", "0")
        if tuned.flavour == "openmpi" and algorithm != "0":
            found[name] = algorithm, tuned.variables.get(f"{PREFIX}{name}_algorithm_segmentsize", "0")
    return found


def text(tuned: TunedJob) -> str:
    head = [
        "Use instead of the algorithms and segments in openmpi-mca-params.conf and env.sh:",
        *(f"export {name}={word}" for name, word in variables(tuned).items()),
    ]
    rules = {
        name: {0: [SizeRule(0)], tuned.document.np: [SizeRule(0, algorithm, segment)]}
        for name, (algorithm, segment) in chosen(tuned).items()
    }
    return format_rules(rules, head)


def variables(tuned: TunedJob) -> dict[str, str]:
    """The variables that make Open MPI read the file."""
    return {**TUNED_FIRST, RULES_VARIABLE: shlex.quote(tuned.path(FILE))}


register(
    OutputFormat(
        file=FILE,
        what="only the algorithms, for communicators of the job's size or larger",
        text=text,
        applies=lambda tuned: bool(chosen(tuned)),
        use=lambda tuned: " ".join(["export", *(f"{name}={word}" for name, word in variables(tuned).items())]),
    )
)
