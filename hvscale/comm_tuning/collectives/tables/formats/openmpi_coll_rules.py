"""openmpi-coll-rules.conf: the library's algorithms as rules of coll tuned, in the form that Open
MPI 4 and 5 read.
"""

from collections.abc import Mapping

from hvscale.comm_tuning.collectives.tables.files import OPERATIONS, Format, SizeRange, TableTarget, register
from hvscale.comm_tuning.collectives.tables.library_algorithms import algorithms_of
from hvscale.comm_tuning.collectives.tables.openmpi_rules import FILENAME, SizeRule, SizeRules, rules_file

FILE = "openmpi-coll-rules.conf"
NAMES = {"broadcast": "bcast"}
DYNAMIC = "OMPI_MCA_coll_tuned_use_dynamic_rules"


def applies(job: TableTarget) -> bool:
    return job.table.mpi == "openmpi" and job.table.names_algorithms


def rules(job: TableTarget) -> dict[str, SizeRules]:
    """By the collective's name in Open MPI."""
    found: dict[str, SizeRules] = {}
    for operation in OPERATIONS:
        by_ranks = job.of(operation)
        if any(one.rule is not None for ranges in by_ranks.values() for one in ranges):
            numbers = algorithms_of("openmpi", operation)
            found[NAMES.get(operation, operation)] = {
                ranks: [size_rule(one, numbers) for one in ranges] for ranks, ranges in by_ranks.items()
            }
    return found


def size_rule(one: SizeRange, numbers: Mapping[str, str]) -> SizeRule:
    if one.rule is None or one.rule.library_algorithm is None:
        return SizeRule(one.first)
    return SizeRule(one.first, numbers[one.rule.library_algorithm], str(one.rule.segment_bytes or 0))


def head(job: TableTarget) -> list[str]:
    return [f"{name}={word}" for name, word in variables(job).items()]


def variables(job: TableTarget) -> dict[str, str]:
    return {DYNAMIC: "1", FILENAME: job.path(FILE)}


register(
    Format(
        file=FILE,
        what="Open MPI's rules, for releases 4 and 5",
        text=lambda job: rules_file(rules(job), head(job)),
        applies=applies,
        variables=variables,
    )
)
