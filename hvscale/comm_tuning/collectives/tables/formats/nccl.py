"""nccl-tuner.csv: for the example tuner plug-in in NCCL's source, named in NCCL_TUNER_PLUGIN.

Each line applies to one number of ranks and nodes; NCCL decides for all other communicators. -1
means any value, and NCCL's choice of channels.
"""

import csv
import io
from math import ceil

from hvscale.comm_tuning.collectives.tables.files import TableFormat, TableTarget, names_algorithm, register
from hvscale.comm_tuning.collectives.tables.table import Operation, Rule

FILE = "nccl-tuner.csv"
COLUMNS = (
    *("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels"),
    *("nNodes", "nRanks", "numPipeOps", "regBuff"),
)
COLLECTIVES: tuple[Operation, ...] = ("broadcast", "allreduce", "allgather")
ANY = -1


def text(target: TableTarget) -> str:
    stream = io.StringIO()
    stream.write("# " + ",".join(COLUMNS) + "\n")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows(row(rule) for rule in target.table.rule if rule.operation in COLLECTIVES and names_algorithm(rule))
    return stream.getvalue()


def row(rule: Rule) -> tuple[object, ...]:
    nodes = ceil(rule.np / rule.ranks_per_node)
    channels = ANY if rule.channels is None else rule.channels
    first = (rule.operation, rule.bytes_min, rule.last, rule.library_algorithm, rule.protocol, channels)
    return (*first, nodes, rule.np, ANY, ANY)


register(
    TableFormat(
        file=FILE,
        text=text,
        variables=lambda target: {"NCCL_TUNER_CONFIG_FILE": target.path(FILE)},
        mpi="nccl",
    )
)
