"""mpich-coll.json: MPICH's tree of decisions with the table's in place of its own, for
MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE.

The file replaces all that the library has in it, so its own tree is read out of the library and
stands wherever the table says nothing. Where a variable forces an algorithm, MPICH looks whether it
can be used; where this file names one, it does not: the conditions stand in the file.
"""

import json
from pathlib import Path
from typing import Any

from hvscale.comm_tuning.collectives.tables.files import OPERATIONS, Format, SizeRange, TableTarget, register
from hvscale.comm_tuning.collectives.tables.library_algorithms import algorithms_of
from hvscale.comm_tuning.collectives.tables.table import Operation, Rule
from hvscale.core.documents import parse_json
from hvscale.core.errors import RequestError

FILE = "mpich-coll.json"
FILENAME = "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE"
NAMES: dict[Operation, str] = {"broadcast": "bcast"}
# What the bytes of our table are there.
SIZES = {
    "broadcast": "avg_msg_size",
    "allreduce": "avg_msg_size",
    "allgather": "total_msg_size",
    "gather": "total_msg_size",
}
LARGEST_INT = 2**31 - 1
FIRST_KEY = b'"collective='
OF_THE_COMMON_PART = "algorithm=MPIR_Bcast"  # the trees of the layers below it name their own
PAGE = 4096
TREE: dict[str, int | str] = {"tree_type": "kary", "k": 2, "is_non_blocking": 1}
TOPOLOGY = {"topo_overhead": 200, "topo_diff_groups": 2800, "topo_diff_switches": 1900, "topo_same_switches": 1600}
# What the file has to say of them: the defaults of MPICH's variables for each, which were measured.
PARAMETERS: dict[str, dict[str, int | str]] = {
    "Bcast_intra_tree": {**TREE, **TOPOLOGY},
    "Bcast_intra_pipelined_tree": {**TREE, "chunk_size": 8192, "recv_pre_posted": 0},
    "Allreduce_intra_tree": {"tree_type": "knomial_1", "k": 2, "chunk_size": 0, "buffer_per_child": 0, **TOPOLOGY},
    "Allreduce_intra_recursive_multiplying": {"k": 2},
    "Allreduce_intra_recexch": {"k": 2, "single_phase_recv": 0},
    "Allreduce_intra_k_reduce_scatter_allgather": {"k": 2, "single_phase_recv": 0},
    "Allgather_intra_k_brucks": {"k": 2},
    "Allgather_intra_recexch_doubling": {"k": 2, "single_phase_recv": 0},
    "Allgather_intra_recexch_halving": {"k": 2, "single_phase_recv": 0},
}
POWERS_OF_TWO = {"Bcast_intra_scatter_recursive_doubling_allgather", "Allgather_intra_recursive_doubling"}
Node = dict[str, Any]


def text(job: TableTarget) -> str:
    """Raises RequestError where the library does not hold its decisions as MPICH 4 and 5 do."""
    if job.library is None:
        raise RequestError(
            "MPICH's own decisions are needed for its file, and its library was not found: add its folder to LD_LIBRARY_PATH"
        )
    tree = own_tree(job.library)
    for operation in OPERATIONS:
        by_ranks = job.of(operation)
        of_operation = tree.get(f"collective={NAMES.get(operation, operation)}", {})
        if any(one.rule is not None for ranges in by_ranks.values() for one in ranges):
            if "comm_type=intra" not in of_operation:
                raise RequestError(f"{job.library}: its decisions for {operation} are not in the form of MPICH 4 and 5")
            of_operation["comm_type=intra"] = by_size_of_communicator(
                operation, by_ranks, of_operation["comm_type=intra"]
            )
    written = json.dumps(tree, indent=1) + "\n"
    # MPICH maps the file and reads on to the first byte of 0, which a whole page does not have
    # behind it.
    return written + "\n" if len(written) % PAGE == 0 else written


def own_tree(library: Path) -> Node:
    """The common part's: it is a text of JSON in the library."""
    try:
        data = library.read_bytes()
    except OSError as error:
        raise RequestError(f"{library}: {error.strerror}") from error
    at = data.find(FIRST_KEY)
    while at >= 0:
        start, end = data.rfind(b"{", 0, at), data.find(b"\0", at)
        found = data[start:end].decode("ascii", "replace")
        if OF_THE_COMMON_PART in found:
            try:
                tree: Node = parse_json(found)
            except ValueError:
                break
            return tree
        at = data.find(FIRST_KEY, end)
    raise RequestError(f"{library}: it does not hold its decisions in the form of MPICH 4 and 5")


def by_size_of_communicator(operation: Operation, by_ranks: dict[int, list[SizeRange]], own: Node) -> Node:
    starts = list(by_ranks)
    tree: Node = {}
    for start, after in zip(starts, [*starts[1:], None], strict=True):
        tree["comm_size=any" if after is None else f"comm_size<{after}"] = by_size(operation, by_ranks[start], own)
    return tree


def by_size(operation: Operation, ranges: list[SizeRange], own: Node) -> Node:
    """Sizes that an int does not hold take what the largest does."""
    key, tree = SIZES[operation], {}
    for one in ranges:
        if one.last is None or one.last >= LARGEST_INT:
            tree[f"{key}=any"] = leaf(operation, one.rule, own)
            break
        tree[f"{key}<={one.last}"] = leaf(operation, one.rule, own)
    return tree


def leaf(operation: Operation, rule: Rule | None, own: Node) -> Node:
    """One algorithm, where it can be used; elsewhere the library's own choice."""
    if rule is None or rule.library_algorithm is None:
        return own
    name = f"{NAMES.get(operation, operation).capitalize()}_intra_{algorithms_of('mpich', operation)[rule.library_algorithm]}"
    parameters = dict(PARAMETERS.get(name, {}))
    if rule.segment_bytes is not None and "chunk_size" in parameters:
        parameters["chunk_size"] = rule.segment_bytes
    found: Node = {f"algorithm=MPIR_{name}": {f"{key}={value}": {} for key, value in parameters.items()}}
    if name in POWERS_OF_TWO:
        return {"comm_size=pow2": found, "comm_size=any": own}
    if name.endswith("_smp"):
        found = {"comm_hierarchy=parent": found, "comm_hierarchy=any": own}
    if operation == "allreduce":
        return {"is_op_built_in=no": own, "is_op_built_in=yes": {"count<pow2": own, "count=any": found}}
    return found


register(
    Format(
        file=FILE,
        what="MPICH's decisions",
        text=text,
        applies=lambda job: job.table.mpi == "mpich" and job.table.names_algorithms,
        variables=lambda job: {FILENAME: job.path(FILE)},
    )
)
