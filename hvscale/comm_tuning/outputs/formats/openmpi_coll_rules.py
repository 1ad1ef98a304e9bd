"""openmpi-coll-rules.conf: the chosen algorithms as rules of coll tuned, for communicators of the job's size or more.

The format is that of coll_tuned_dynamic_file.c in Open MPI 4 and 5: numbers, and # before what is not read. Against the parameters, which
hold for every communicator, smaller ones keep the library's own choice: for them stands rule 0, which is to have none.
"""

import shlex

from hvscale.comm_tuning.knobs.libraries.openmpi import TUNED_FIRST
from hvscale.comm_tuning.outputs.output import Output, register
from hvscale.comm_tuning.outputs.tuned import Tuned

FILE = "openmpi-coll-rules.conf"
FILENAME = "OMPI_MCA_coll_tuned_dynamic_rules_filename"
PREFIX = "OMPI_MCA_coll_tuned_"
# Their numbers among MPI's collectives, in coll_base_functions.h.
COLLECTIVES = {"allreduce": 2, "bcast": 7}


def chosen(tuned: Tuned) -> dict[str, tuple[str, str]]:
    """By collective: the number of its algorithm, and the bytes of a segment, 0 for the algorithm's own."""
    found = {}
    for name in COLLECTIVES:
        algorithm = tuned.variables.get(f"{PREFIX}{name}_algorithm", "0")
        if tuned.flavour == "openmpi" and algorithm != "0":
            found[name] = algorithm, tuned.variables.get(f"{PREFIX}{name}_algorithm_segmentsize", "0")
    return found


def text(tuned: Tuned) -> str:
    rules = chosen(tuned)
    lines = [
        "# In place of the lines for algorithms and segments in openmpi-mca-params.conf and env.sh:",
        *(f"# export {name}={word}" for name, word in variables(tuned).items()),
        f"{len(rules)} # collectives",
    ]
    for name, (algorithm, segment) in rules.items():
        lines += [
            f"{COLLECTIVES[name]} # {name}",
            "2 # sizes of communicators",
            "0 # ranks or more",
            "1 # sizes of messages",
            "0 0 0 0 # from 0 bytes: the library decides",
            f"{tuned.document.np} # ranks or more",
            "1 # sizes of messages",
            f"0 {algorithm} 0 {segment} # from 0 bytes: algorithm, fan-out, segment",
        ]
    return "\n".join([*lines, ""])


def variables(tuned: Tuned) -> dict[str, str]:
    """What makes Open MPI read the file."""
    return {**TUNED_FIRST, FILENAME: shlex.quote(tuned.path(FILE))}


register(
    Output(
        file=FILE,
        what="the algorithms alone, for communicators of the job's size or more",
        text=text,
        applies=lambda tuned: bool(chosen(tuned)),
        use=lambda tuned: " ".join(["export", *(f"{name}={word}" for name, word in variables(tuned).items())]),
    )
)
