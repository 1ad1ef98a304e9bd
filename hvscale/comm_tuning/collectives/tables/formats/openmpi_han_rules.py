"""openmpi-han-rules.conf: for which messages Open MPI 5's coll han, which goes first between nodes,
leaves a collective to coll tuned.

The form: coll_han_dynamic_file.h. Where the table names no algorithm, han does what it does without
a table.
"""

from collections.abc import Iterator, Sequence

from hvscale.comm_tuning.collectives.tables.files import OPERATIONS, Format, SizeRange, TableTarget, register
from hvscale.comm_tuning.collectives.tables.formats.openmpi_coll_rules import NAMES, applies
from hvscale.comm_tuning.collectives.tables.openmpi_rules import COLLECTIVES

FILE = "openmpi-han-rules.conf"
# Their sizes are those of one rank's block to han, and of all blocks to the table.
IN_BLOCKS = ("allgather", "gather")


def text(job: TableTarget) -> str:
    rules = {operation: job.of(operation, auto=True) for operation in OPERATIONS}
    named = {
        operation: by_ranks
        for operation, by_ranks in rules.items()
        if any(one.rule is not None for ranges in by_ranks.values() for one in ranges)
    }
    lines = [f"{len(named)} # collectives"]
    for operation, by_ranks in named.items():
        name = NAMES.get(operation, operation)
        lines += [f"{COLLECTIVES[name]} # {name}", "1 # level", "global_communicator"]
        lines.append(f"{len(by_ranks)} # sizes of communicators")
        for ranks, ranges in by_ranks.items():
            blocks = next((one.rule.np for one in ranges if one.rule is not None), 1) if operation in IN_BLOCKS else 1
            found = list(components(ranges, blocks))
            lines += [f"{max(ranks, 1)} # ranks or more", f"{len(found)} # sizes of messages", *found]
    return "\n".join([*lines, ""])


def components(ranges: Sequence[SizeRange], blocks: int) -> Iterator[str]:
    """From how many bytes on which one does it; `blocks`: of a message."""
    last = ""
    for one in ranges:
        component = "han" if one.rule is None else "tuned"
        if component != last:
            yield f"{-(-one.first // blocks)} {component}"
        last = component


def variables(job: TableTarget) -> dict[str, str]:
    return {"OMPI_MCA_coll_han_use_dynamic_file_rules": "1", "OMPI_MCA_coll_han_dynamic_rules_filename": job.path(FILE)}


register(
    Format(
        file=FILE,
        what="which messages Open MPI's coll han leaves to these rules",
        text=text,
        applies=applies,
        variables=variables,
    )
)
