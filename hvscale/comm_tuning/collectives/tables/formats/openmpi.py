"""Open MPI's rules: which algorithm coll tuned uses, and which messages coll han leaves to it.

openmpi-coll-rules.conf: for Open MPI 4 and 5, as coll_tuned_dynamic_file.c reads it: numbers, and
comments from # on. openmpi-coll-rules-2.conf: the same in the second version of the format, which
releases from 5.0.7 on read. openmpi-han-rules.conf: between nodes, Open MPI 5 prefers coll han;
this file (coll_han_dynamic_file.h) gives coll tuned the messages for which the table names an
algorithm.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hvscale.comm_tuning.collectives.tables.files import (
    OPERATIONS,
    SizeRange,
    TableFormat,
    TableTarget,
    any_algorithm,
    register,
)
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.comm_tuning.knobs.library import algorithms_of

RULES_FILE, HAN_FILE = "openmpi-coll-rules.conf", "openmpi-han-rules.conf"
RULES_VARIABLE = "OMPI_MCA_coll_tuned_dynamic_rules_filename"
# The collectives' numbers in coll_base_functions.h.
COLLECTIVES = {"allgather": 0, "allreduce": 2, "bcast": 7, "gather": 9}
NAMES = {"broadcast": "bcast"}
CHAIN_FANOUT = 4  # the default of coll_tuned_bcast_algorithm_chain_fanout, which a rule does not know
BROADCAST_CHAIN = "2"
FAILS_ABOVE_TWO_RANKS = "two_ranks"
# For these, han counts the bytes of one rank's block, and the table those of all blocks.
SIZED_BY_BLOCK = ("allgather", "gather")


@dataclass(frozen=True)
class SizeRule:
    """The algorithm for messages of `bytes` or more.

    `algorithm`: its number, 0 for the library's choice; `segment`: in bytes, 0 for the algorithm's
    default.
    """

    bytes: int
    algorithm: str = "0"
    segment: str = "0"


# By the least number of ranks; a communicator with fewer ranks than the first has no rule.
SizeRules = Mapping[int, Sequence[SizeRule]]


def format_rules(rules: Mapping[str, SizeRules], head: Iterable[str] = (), version: int = 1) -> str:
    """The text of a rules file. `rules`: by the collective's name in Open MPI's parameters.

    Version 2 has a fifth number: the limit on outstanding requests, 0 for no limit.
    """
    lines = ["rule-file-version-2"] if version == 2 else []
    lines += [*(f"# {line}" for line in head), f"{len(rules)} # collectives"]
    requests = " 0" if version == 2 else ""
    for name, by_ranks in rules.items():
        lines += [f"{COLLECTIVES[name]} # {name}", f"{len(by_ranks)} # communicator sizes"]
        for ranks, by_bytes in by_ranks.items():
            lines += [f"{ranks} # ranks or more", f"{len(by_bytes)} # message sizes"]
            for rule in by_bytes:
                fanout = CHAIN_FANOUT if (name, rule.algorithm) == ("bcast", BROADCAST_CHAIN) else 0
                meaning = "the library's choice" if rule.algorithm == "0" else "algorithm, fan-out, segment"
                lines.append(
                    f"{rule.bytes} {rule.algorithm} {fanout} {rule.segment}{requests} # from {rule.bytes} bytes: {meaning}"
                )
    return "\n".join([*lines, ""])


def named_operations(
    target: TableTarget, name_auto: bool = False
) -> Iterator[tuple[Operation, dict[int, list[SizeRange]]]]:
    """The operations for which the table names an algorithm, with their ranges by np."""
    for operation in OPERATIONS:
        by_np = target.ranges_by_np(operation, name_auto)
        if any(map(any_algorithm, by_np.values())):
            yield operation, by_np


def rules_of(target: TableTarget) -> dict[str, SizeRules]:
    """The rules by the collective's name in Open MPI."""
    return {
        NAMES.get(operation, operation): {
            np: [size_rule(one, algorithms_of("openmpi", operation), np) for one in ranges]
            for np, ranges in usable(by_np).items()
        }
        for operation, by_np in named_operations(target)
    }


def usable(by_np: dict[int, list[SizeRange]]) -> dict[int, list[SizeRange]]:
    """The ranges, with an entry for 3 ranks where `two_ranks` ends."""
    below = by_np[max(np for np in by_np if np <= 3)]
    names = {one.rule.library_algorithm for one in below if one.rule is not None}
    return dict(sorted({3: below, **by_np}.items())) if FAILS_ABOVE_TWO_RANKS in names else by_np


def size_rule(one: SizeRange, numbers: Mapping[str, str], np: int) -> SizeRule:
    """The rule for `np` ranks or more."""
    if one.rule is None or one.rule.library_algorithm is None:
        return SizeRule(one.first)
    if one.rule.library_algorithm == FAILS_ABOVE_TWO_RANKS and np > 2:
        return SizeRule(one.first)
    return SizeRule(one.first, numbers[one.rule.library_algorithm], str(one.rule.segment_bytes or 0))


def rules_variables(target: TableTarget) -> dict[str, str]:
    return {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", RULES_VARIABLE: target.path(RULES_FILE)}


def rules_text(target: TableTarget) -> str:
    return format_rules(rules_of(target), [f"{name}={value}" for name, value in rules_variables(target).items()])


def han_text(target: TableTarget) -> str:
    rules = dict(named_operations(target, name_auto=True))
    lines = [f"{len(rules)} # collectives"]
    for operation, by_np in rules.items():
        name = NAMES.get(operation, operation)
        lines += [f"{COLLECTIVES[name]} # {name}", "1 # level", "global_communicator"]
        lines.append(f"{len(by_np)} # communicator sizes")
        for np, ranges in by_np.items():
            named = (one.rule.np for one in ranges if one.rule is not None)
            blocks = next(named, 1) if operation in SIZED_BY_BLOCK else 1
            found = list(components(ranges, blocks))
            lines += [f"{max(np, 1)} # ranks or more", f"{len(found)} # message sizes", *found]
    return "\n".join([*lines, ""])


def components(ranges: Sequence[SizeRange], blocks: int) -> Iterator[str]:
    """Lines with the least bytes of a block and the component. `blocks`: in one message."""
    last = ""
    for one in ranges:
        component = "han" if one.rule is None else "tuned"
        if component != last:
            yield f"{-(-one.first // blocks)} {component}"
        last = component


def han_variables(target: TableTarget) -> dict[str, str]:
    return {
        "OMPI_MCA_coll_han_use_dynamic_file_rules": "1",
        "OMPI_MCA_coll_han_dynamic_rules_filename": target.path(HAN_FILE),
    }


register(TableFormat(file=RULES_FILE, text=rules_text, variables=rules_variables, mpi="openmpi"))
register(
    TableFormat(
        file="openmpi-coll-rules-2.conf",
        text=lambda target: format_rules(rules_of(target), version=2),
        mpi="openmpi",
    )
)
register(TableFormat(file=HAN_FILE, text=han_text, variables=han_variables, mpi="openmpi"))
