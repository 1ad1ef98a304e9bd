"""MPICH's decisions: mpich-coll.json, and mpich-coll.conf for collectives with a single algorithm.

mpich-coll.json: MPICH's decision tree for MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE. The file
replaces the tree inside the library, so hvscale reads that tree out of the library and keeps it
wherever the table has no rule. MPICH checks whether an algorithm is usable when a variable forces
it, but not when this file names it; so the file contains these conditions.

mpich-coll.conf: control variables, which apply to messages of all sizes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvscale.comm_tuning.collectives.tables.files import (
    OPERATIONS,
    SizeRange,
    TableFormat,
    TableTarget,
    any_algorithm,
    register,
)
from hvscale.comm_tuning.collectives.tables.table import INT_MAX, Operation, Rule
from hvscale.comm_tuning.knobs.library import algorithm_knob, algorithms_of
from hvscale.core.documents import parse_json
from hvscale.core.errors import RequestError

JSON_FILE = "mpich-coll.json"
JSON_VARIABLE = "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE"
NAMES: dict[Operation, str] = {"broadcast": "bcast"}
# MPICH's key for the bytes of the table.
SIZE_KEYS = {
    "broadcast": "avg_msg_size",
    "allreduce": "avg_msg_size",
    "allgather": "total_msg_size",
    "gather": "total_msg_size",
}
FIRST_KEY = b'"collective='
COMMON_PART = "algorithm=MPIR_Bcast"  # only in the tree of the common part; lower layers have trees of their own
PAGE = 4096
TREE: dict[str, int | str] = {"tree_type": "kary", "k": 2, "is_non_blocking": 1}
TOPOLOGY = {"topo_overhead": 200, "topo_diff_groups": 2800, "topo_diff_switches": 1900, "topo_same_switches": 1600}
# The parameters that the file must give: the defaults of MPICH's variables, which were measured.
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
CONF_HEAD = "# Use instead of mpich-coll.json, for all messages and communicators: set -a; . FILE; set +a\n"
SEGMENT_VARIABLES: dict[Operation, str] = {
    "broadcast": "MPIR_CVAR_BCAST_TREE_PIPELINE_CHUNK_SIZE",
    "allreduce": "MPIR_CVAR_ALLREDUCE_TREE_PIPELINE_CHUNK_SIZE",
}
Node = dict[str, Any]


def json_text(target: TableTarget) -> str:
    """Raises RequestError if the library does not contain a tree in the form of MPICH 4 and 5."""
    if target.library is None:
        raise RequestError(
            f"{JSON_FILE} needs MPICH's own decisions, but MPICH's library was not found: add its folder to LD_LIBRARY_PATH"
        )
    tree = library_tree(target.library)
    for operation in OPERATIONS:
        by_np = target.ranges_by_np(operation)
        of_operation = tree.get(f"collective={NAMES.get(operation, operation)}", {})
        if any(map(any_algorithm, by_np.values())):
            if "comm_type=intra" not in of_operation:
                raise RequestError(
                    f"{target.library}: its decisions for {operation} are not in the form of MPICH 4 and 5"
                )
            of_operation["comm_type=intra"] = tree_by_np(operation, by_np, of_operation["comm_type=intra"])
    written = json.dumps(tree, indent=1) + "\n"
    # MPICH maps the file and reads until the first zero byte. After a file of whole pages there is
    # none.
    return written + "\n" if len(written) % PAGE == 0 else written


def library_tree(library: Path) -> Node:
    """The decision tree of MPICH's common part, a JSON text inside the library's file."""
    try:
        data = library.read_bytes()
    except OSError as error:
        raise RequestError(f"{library}: {error.strerror}") from error
    at = data.find(FIRST_KEY)
    while at >= 0:
        start, end = data.rfind(b"{", 0, at), data.find(b"\0", at)
        found = data[start:end].decode("ascii", "replace")
        if COMMON_PART in found:
            try:
                tree: Node = parse_json(found)
            except ValueError:
                break
            return tree
        at = data.find(FIRST_KEY, end)
    raise RequestError(f"{library}: its decisions are not in the form of MPICH 4 and 5")


def tree_by_np(operation: Operation, by_np: dict[int, list[SizeRange]], default: Node) -> Node:
    starts = list(by_np)
    tree: Node = {}
    for start, after in zip(starts, [*starts[1:], None], strict=True):
        key = "comm_size=any" if after is None else f"comm_size<{after}"
        tree[key] = tree_by_size(operation, by_np[start], default)
    return tree


def tree_by_size(operation: Operation, ranges: list[SizeRange], default: Node) -> Node:
    """Sizes are ints in MPICH; larger messages use the last range."""
    key, tree = SIZE_KEYS[operation], {}
    for one in ranges:
        if one.last is None or one.last >= INT_MAX:
            tree[f"{key}=any"] = leaf(operation, one.rule, default)
            break
        tree[f"{key}<={one.last}"] = leaf(operation, one.rule, default)
    return tree


def leaf(operation: Operation, rule: Rule | None, default: Node) -> Node:
    """The rule's algorithm where it is usable, and MPICH's own decisions (`default`) elsewhere."""
    if rule is None or rule.library_algorithm is None:
        return default
    name = f"{NAMES.get(operation, operation).capitalize()}_intra_{algorithms_of('mpich', operation)[rule.library_algorithm]}"
    parameters = dict(PARAMETERS.get(name, {}))
    if rule.segment_bytes is not None and "chunk_size" in parameters:
        parameters["chunk_size"] = rule.segment_bytes
    found: Node = {f"algorithm=MPIR_{name}": {f"{key}={value}": {} for key, value in parameters.items()}}
    if name in POWERS_OF_TWO:
        return {"comm_size=pow2": found, "comm_size=any": default}
    if name.endswith("_smp"):
        found = {"comm_hierarchy=parent": found, "comm_hierarchy=any": default}
    if operation == "allreduce":
        return {"is_op_built_in=no": default, "is_op_built_in=yes": {"count<pow2": default, "count=any": found}}
    return found


def conf_text(target: TableTarget) -> str:
    return CONF_HEAD + "".join(line for operation in OPERATIONS for line in conf_lines(target, operation))


def conf_lines(target: TableTarget, operation: Operation) -> Iterator[str]:
    ranges = target.ranges_of_job(operation)
    if not any_algorithm(ranges):
        return
    rule = ranges[0].rule
    if len(ranges) > 1 or rule is None:
        yield f"# {operation}: left out; its algorithm depends on the size, which variables cannot express\n"
        return
    for name, value in conf_variables(operation, rule).items():
        yield f"{name}={value}\n"


def conf_variables(operation: Operation, rule: Rule) -> dict[str, str]:
    spelling = algorithm_knob("mpich", operation)
    assert spelling is not None  # noqa: S101 - MPICH spells the algorithm of every operation
    found = spelling.write(rule.library_algorithm or "")
    if rule.segment_bytes is not None and operation in SEGMENT_VARIABLES:
        found[SEGMENT_VARIABLES[operation]] = str(rule.segment_bytes)
    return found


register(
    TableFormat(
        file=JSON_FILE,
        text=json_text,
        variables=lambda target: {JSON_VARIABLE: target.path(JSON_FILE)},
        mpi="mpich",
    )
)
register(TableFormat(file="mpich-coll.conf", text=conf_text, mpi="mpich"))
