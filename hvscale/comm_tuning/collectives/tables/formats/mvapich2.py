"""mvapich2-coll.conf: MVAPICH2's variables, which set an algorithm for a range of bytes.

A value is `NUMBER:FIRST-LAST,...`, with `+` for no upper limit, as MV2_internode_Bcast_is_define
and MV2_internode_Allreduce_is_define of the library's source read it. It applies to all
communicators.
"""

from collections.abc import Mapping

from hvscale.comm_tuning.collectives.tables.files import (
    SizeRange,
    TableFormat,
    TableTarget,
    any_algorithm,
    register,
)
from hvscale.comm_tuning.collectives.tables.table import INT_MAX, Operation
from hvscale.comm_tuning.knobs.library import algorithms_of

VARIABLES: dict[Operation, str] = {
    "broadcast": "MV2_INTER_BCAST_TUNING",
    "allreduce": "MV2_INTER_ALLREDUCE_TUNING",
}


def text(target: TableTarget) -> str:
    values = variables(target)
    lines = [f"{name}={value}" for name, value in values.items()]
    lines += [
        f"# {name}: left out; some sizes need the library's own choice, which has no number"
        for operation, name in VARIABLES.items()
        if any_algorithm(target.ranges_of_job(operation)) and name not in values
    ]
    return "\n".join([*lines, ""])


def variables(target: TableTarget) -> dict[str, str]:
    found = {}
    for operation, name in VARIABLES.items():
        ranges = target.ranges_of_job(operation)
        if ranges and all(one.rule is not None for one in ranges):
            found[name] = variable_value(ranges, algorithms_of("mvapich2", operation))
    return found


def variable_value(ranges: list[SizeRange], numbers: Mapping[str, str]) -> str:
    """Sizes are ints in the library; larger messages use the last range."""
    within_int = [one for one in ranges if one.first < INT_MAX]
    parts = []
    for one in within_int:
        number = numbers[str(one.rule and one.rule.library_algorithm)]
        last = "+" if one is within_int[-1] else str(one.last)
        parts.append((number, f"{number}:{one.first}-{last}"))
    return parts[0][0] if len(parts) == 1 else ",".join(part for _, part in parts)


register(TableFormat(file="mvapich2-coll.conf", text=text, variables=variables, mpi="mvapich2"))
