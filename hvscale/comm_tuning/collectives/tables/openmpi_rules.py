"""The rules file of Open MPI's coll tuned, as coll_tuned_dynamic_file.c reads it: numbers, and #
before what is not read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FILENAME = "OMPI_MCA_coll_tuned_dynamic_rules_filename"
# Their numbers among MPI's collectives, in coll_base_functions.h.
COLLECTIVES = {"allgather": 0, "allreduce": 2, "bcast": 7, "gather": 9}
CHAIN_FANOUT = 4  # the default of coll_tuned_bcast_algorithm_chain_fanout, which a rule does not know
BROADCAST_CHAIN = "2"


@dataclass(frozen=True)
class SizeRule:
    """From `bytes` on. `algorithm`: its number, 0 for none; `segment`: in bytes, 0 for the
    algorithm's own.
    """

    bytes: int
    algorithm: str = "0"
    segment: str = "0"


# For communicators of this many ranks or more; for smaller ones than the first there is no rule.
SizeRules = Mapping[int, Sequence[SizeRule]]


def rules_file(rules: Mapping[str, SizeRules], head: Iterable[str] = (), version: int = 1) -> str:
    """By the collective's name in Open MPI's parameters. `version` 2, which releases from 5.0.7 on
    read, has a fifth number: requests, 0 for all.
    """
    lines = ["rule-file-version-2"] if version == 2 else []
    lines += [*(f"# {line}" for line in head), f"{len(rules)} # collectives"]
    last = " 0" if version == 2 else ""
    for name, by_ranks in rules.items():
        lines += [f"{COLLECTIVES[name]} # {name}", f"{len(by_ranks)} # sizes of communicators"]
        for ranks, by_bytes in by_ranks.items():
            lines += [f"{ranks} # ranks or more", f"{len(by_bytes)} # sizes of messages"]
            for rule in by_bytes:
                fanout = CHAIN_FANOUT if (name, rule.algorithm) == ("bcast", BROADCAST_CHAIN) else 0
                what = "the library decides" if rule.algorithm == "0" else "algorithm, fan-out, segment"
                lines.append(
                    f"{rule.bytes} {rule.algorithm} {fanout} {rule.segment}{last} # from {rule.bytes} bytes: {what}"
                )
    return "\n".join([*lines, ""])
