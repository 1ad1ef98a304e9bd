"""nccl-tuner.csv: the form of the example that NCCL's source has of a tuner plug-in, which
NCCL_TUNER_PLUGIN has to name.

Each line is for one number of ranks and nodes; communicators of another size keep NCCL's own
choice. -1: any, and of channels NCCL's own.
"""

import csv
import io
from math import ceil

from hvscale.comm_tuning.collectives.tables.files import Format, TableTarget, named, register
from hvscale.comm_tuning.collectives.tables.table import Operation, Rule

FILE = "nccl-tuner.csv"
COLUMNS = (
    *("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels"),
    *("nNodes", "nRanks", "numPipeOps", "regBuff"),
)
COLLECTIVES: tuple[Operation, ...] = ("broadcast", "allreduce", "allgather")
ANY = -1


def text(job: TableTarget) -> str:
    stream = io.StringIO()
    stream.write("# " + ",".join(COLUMNS) + "\n")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows(row(rule) for rule in job.table.rule if rule.operation in COLLECTIVES and named(rule) is not None)
    return stream.getvalue()


def row(rule: Rule) -> tuple[object, ...]:
    nodes = ceil(rule.np / rule.ranks_per_node)
    channels = ANY if rule.channels is None else rule.channels
    first = (rule.operation, rule.bytes_min, rule.last, rule.library_algorithm, rule.protocol, channels)
    return (*first, nodes, rule.np, ANY, ANY)


register(
    Format(
        file=FILE,
        what="NCCL's choices, for a tuner plug-in",
        text=text,
        applies=lambda job: job.table.mpi == "nccl" and job.table.names_algorithms,
        variables=lambda job: {"NCCL_TUNER_CONFIG_FILE": job.path(FILE)},
    )
)
