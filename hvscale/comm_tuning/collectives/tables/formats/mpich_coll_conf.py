"""mpich-coll.conf: MPICH's control variables, which hold for messages of all sizes: of the
collectives that have one algorithm alone.
"""

from collections.abc import Iterator

from hvscale.comm_tuning.collectives.tables.files import OPERATIONS, Format, TableTarget, register
from hvscale.comm_tuning.collectives.tables.table import Operation, Rule
from hvscale.comm_tuning.knobs.library import libraries

HEAD = "# In place of mpich-coll.json, for all messages and communicators: set -a; . FILE; set +a\n"
SEGMENTS: dict[Operation, str] = {
    "broadcast": "MPIR_CVAR_BCAST_TREE_PIPELINE_CHUNK_SIZE",
    "allreduce": "MPIR_CVAR_ALLREDUCE_TREE_PIPELINE_CHUNK_SIZE",
}


def text(job: TableTarget) -> str:
    return HEAD + "".join(line for operation in OPERATIONS for line in lines(job, operation))


def lines(job: TableTarget, operation: Operation) -> Iterator[str]:
    ranges = job.of_the_job(operation)
    if not any(one.rule for one in ranges):
        return
    only = ranges[0].rule
    if len(ranges) > 1 or only is None:
        yield f"# {operation}: its algorithm depends on the size, which variables cannot say\n"
        return
    for name, word in variables(operation, only).items():
        yield f"{name}={word}\n"


def variables(operation: Operation, rule: Rule) -> dict[str, str]:
    """In MPICH's spelling of the knob."""
    [spelling] = [
        spelling
        for library in libraries()
        if library.key == "mpich"
        for spelling in library.spellings
        if spelling.knob == f"{operation}_algorithm"
    ]
    found = spelling.write(rule.library_algorithm or "")
    if rule.segment_bytes is not None and operation in SEGMENTS:
        found[SEGMENTS[operation]] = str(rule.segment_bytes)
    return found


register(
    Format(
        file="mpich-coll.conf",
        what="MPICH's control variables, for collectives with one algorithm alone",
        text=text,
        applies=lambda job: job.table.mpi == "mpich" and job.table.names_algorithms,
    )
)
