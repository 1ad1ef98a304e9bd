"""mvapich2-coll.conf: MVAPICH2's variables, in which an algorithm's number may have a range of
bytes: `NUMBER:FIRST-LAST,...`, `+` without an end.

As MV2_internode_Bcast_is_define and MV2_internode_Allreduce_is_define of the library's source read
them. They hold for all communicators.
"""

from collections.abc import Mapping

from hvscale.comm_tuning.collectives.tables.files import Format, SizeRange, TableTarget, register
from hvscale.comm_tuning.collectives.tables.library_algorithms import algorithms_of
from hvscale.comm_tuning.collectives.tables.table import Operation

VARIABLES: dict[Operation, str] = {
    "broadcast": "MV2_INTER_BCAST_TUNING",
    "allreduce": "MV2_INTER_ALLREDUCE_TUNING",
}
LARGEST_INT = 2**31 - 1


def text(job: TableTarget) -> str:
    lines = [f"{name}={word}" for name, word in variables(job).items()]
    left = [
        name for operation, name in VARIABLES.items() if named(job.of_the_job(operation)) and name not in variables(job)
    ]
    lines += [
        f"# {name}: left out, since at some sizes the library's own choice is better, for which it has no number"
        for name in left
    ]
    return "\n".join([*lines, ""])


def variables(job: TableTarget) -> dict[str, str]:
    found = {}
    for operation, name in VARIABLES.items():
        ranges = job.of_the_job(operation)
        if ranges and all(one.rule is not None for one in ranges):
            found[name] = word(ranges, algorithms_of("mvapich2", operation))
    return found


def named(ranges: list[SizeRange]) -> bool:
    return any(one.rule is not None for one in ranges)


def word(ranges: list[SizeRange], numbers: Mapping[str, str]) -> str:
    """Sizes that an int does not hold take what the largest does."""
    held = [one for one in ranges if one.first < LARGEST_INT]
    parts = []
    for one in held:
        number = numbers[str(one.rule and one.rule.library_algorithm)]
        last = "+" if one is held[-1] else str(one.last)
        parts.append((number, f"{number}:{one.first}-{last}"))
    return parts[0][0] if len(parts) == 1 else ",".join(part for _, part in parts)


register(
    Format(
        file="mvapich2-coll.conf",
        what="MVAPICH2's variables",
        text=text,
        applies=lambda job: job.table.mpi == "mvapich2" and job.table.names_algorithms,
        variables=variables,
    )
)
