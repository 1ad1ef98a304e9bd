"""Files of a decision table: parsed like each library does, they match the table."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hvscale.comm_tuning.collectives.tables.files import FORMATS, OPERATIONS, TableTarget, environment, write_files
from hvscale.comm_tuning.collectives.tables.formats import mpich
from hvscale.comm_tuning.collectives.tables.table import (
    MAX_BYTES,
    CollectivesTable,
    Operation,
    Rule,
    nearest,
    read_table,
)
from hvscale.comm_tuning.knobs.library import AUTO, algorithms_of
from hvscale.core.errors import RequestError
from tests.comm_tuning.test_collectives_table import tables
from tests.conftest import MPICH_PREFIX, needs_mpich

KIB, MIB = 1 << 10, 1 << 20
LIBMPI = MPICH_PREFIX / "lib" / "libmpi.so.12"
LARGEST_INT = 2**31 - 1
NUMBERS = {0: "allgather", 2: "allreduce", 7: "broadcast", 9: "gather"}


def job(table: CollectivesTable, folder: Path, np: int = 4, ranks_per_node: int = 1) -> TableTarget:
    return TableTarget(folder, table, np, ranks_per_node, LIBMPI)


def expected_rule(
    table: CollectivesTable, operation: str, np: int, ranks_per_node: int, size: int, auto: bool = False
) -> Rule | None:
    """The rule that names the library's algorithm, as docs/reference/collectives-table.md
    describes.

    `auto`: whether that counts as an algorithm.
    """
    rules = [rule for rule in table.rule if rule.operation == operation]
    if rules:
        rules = [rule for rule in rules if rule.np == nearest((rule.np for rule in rules), np)]
        on_a_node = nearest((rule.ranks_per_node for rule in rules), min(ranks_per_node, rules[0].np))
        for rule in rules:
            if rule.ranks_per_node == on_a_node and rule.bytes_min <= size <= rule.last:
                left = rule.library_algorithm is None or (rule.library_algorithm == AUTO and not auto)
                return None if left else rule
    return None


def sizes_of(table: CollectivesTable) -> st.SearchStrategy[int]:
    edges = {edge + step for rule in table.rule for edge in (rule.bytes_min, rule.last) for step in (-1, 0, 1)}
    return st.sampled_from(sorted({edge for edge in edges if 1 <= edge <= MAX_BYTES} | {1}))


def read_rules(text: str) -> dict[str, dict[int, list[list[int]]]]:
    """Each rule's numbers by collective and ranks.

    Parses like ompi_coll_tuned_read_rules_config_file of Open MPI 4 and 5.
    """
    lines = text.splitlines()
    columns = 5 if lines[0] == "rule-file-version-2" else 4
    words = iter([int(word) for line in lines if not line.startswith("rule-") for word in line.split("#")[0].split()])
    found: dict[str, dict[int, list[list[int]]]] = {}
    for _ in range(next(words)):
        of_collective = found.setdefault(NUMBERS[next(words)], {})
        for _ in range(next(words)):
            rules = of_collective.setdefault(next(words), [])
            rules += [[next(words) for _ in range(columns)] for _ in range(next(words))]
            assert rules[0][0] == 0
            assert [rule[0] for rule in rules] == sorted({rule[0] for rule in rules})
        assert list(of_collective) == sorted(of_collective)
    assert next(words, None) is None
    return found


@pytest.mark.parametrize("file", ["openmpi-coll-rules.conf", "openmpi-coll-rules-2.conf"])
@given(table=tables().filter(lambda table: table.mpi == "openmpi"), ranks_per_node=st.integers(1, 8), data=st.data())
def test_open_mpi_s_rules(file: str, table: CollectivesTable, ranks_per_node: int, data: st.DataObject) -> None:
    [format_] = [one for one in FORMATS.all().values() if one.file == file]
    of = job(table, Path("/folder"), ranks_per_node=ranks_per_node)
    assert format_.applies(of) == table.names_algorithms
    found = read_rules(format_.text(of))
    np = data.draw(st.integers(2, 6000))
    for operation in OPERATIONS:
        size = data.draw(sizes_of(table))
        expected = expected_rule(table, operation, np, ranks_per_node, size)
        if expected and expected.library_algorithm == "two_ranks" and np > 2:
            expected = None  # it would fail
        algorithm, segment = 0, 0
        if operation in found:
            by_bytes = found[operation][max(ranks for ranks in found[operation] if ranks <= np)]
            _, algorithm, _, segment = [rule for rule in by_bytes if rule[0] <= size][-1][:4]
        numbers = algorithms_of("openmpi", operation)
        assert algorithm == (int(numbers[str(expected.library_algorithm)]) if expected else 0)
        assert segment == (expected.segment_bytes or 0 if expected else 0)


def test_open_mpi_s_algorithm_for_two_ranks_ends_below_three() -> None:
    rules = [
        rule("allgather", 1, KIB, "two_ranks", np=2, ranks_per_node=2),
        rule("allgather", KIB + 1, None, "ring", np=2, ranks_per_node=2),
    ]
    [format_] = [one for one in FORMATS.all().values() if one.file == "openmpi-coll-rules.conf"]
    table = CollectivesTable(mpi="openmpi", rule=rules)
    found = read_rules(format_.text(job(table, Path("/folder"))))["allgather"]
    ring = [KIB + 1, 4, 0, 0]
    assert found == {0: [[0, 6, 0, 0], ring], 3: [[0, 0, 0, 0], ring]}


def component(text: str, operation: str, np: int, block: int) -> str:
    """The component that handles a message with blocks of `block` bytes.

    Selects like get_dynamic_rule of Open MPI 5's coll han.
    """
    words = iter(word for line in text.splitlines() for word in line.split("#")[0].split())
    found = "han"
    for _ in range(int(next(words))):
        name = NUMBERS[int(next(words))]
        assert [next(words), next(words)] == ["1", "global_communicator"]
        by_ranks = {}
        for _ in range(int(next(words))):
            ranks = int(next(words))
            by_ranks[ranks] = [(int(next(words)), next(words)) for _ in range(int(next(words)))]
            assert by_ranks[ranks][0][0] == 0
        assert min(by_ranks) == 1
        if name == operation:
            of_np = by_ranks[max(ranks for ranks in by_ranks if ranks <= np)]
            found = [one for least, one in of_np if least <= block][-1]
    assert next(words, None) is None
    return found


@given(table=tables().filter(lambda table: table.mpi == "openmpi"), data=st.data())
def test_coll_han_keeps_messages_without_an_algorithm(table: CollectivesTable, data: st.DataObject) -> None:
    [format_] = [one for one in FORMATS.all().values() if one.file == "openmpi-han-rules.conf"]
    of = job(table, Path("/folder"))
    assume(format_.applies(of))
    operation = data.draw(st.sampled_from(OPERATIONS))
    # Between the operation's own numbers of ranks, a limit in bytes of a block is not exact.
    own = [rule.np for rule in table.rule if rule.operation == operation]
    np = data.draw(st.sampled_from(own or [rule.np for rule in table.rule]))
    size = data.draw(sizes_of(table))
    block = size
    if operation in ("allgather", "gather"):
        block = min(-(-size // np), MAX_BYTES // np)  # whole blocks, within the largest size
        size = block * np
    expected = expected_rule(table, operation, np, of.ranks_per_node, size, auto=True)
    assert component(format_.text(of), operation, np, block) == ("tuned" if expected else "han")


def chosen(tree: dict[str, Any], has: dict[str, int | str]) -> tuple[str, dict[str, Any]]:
    """The first matching branch, as in MPICH's csel.c. `has`: the values of the keys."""
    for key, inside in tree.items():
        if key.startswith("algorithm="):
            return key.removeprefix("algorithm="), inside
        match = re.fullmatch(r"([a-z_]+)(<=|<|=)(\w+)", key)
        assert match, key
        name, sign, value = match.groups()
        size = has.get(name, 0)
        if value == "any":
            holds = True
        elif value == "pow2":
            holds = isinstance(size, int) and (size & (size - 1) == 0 if sign == "=" else has["count"] < has["pow2"])  # type: ignore[operator]
        elif sign == "=":
            holds = size == value
        else:
            holds = int(size) <= int(value) if sign == "<=" else int(size) < int(value)
        if holds:
            return chosen(inside, has)
    raise AssertionError(f"no branch for {has}")


@needs_mpich
@given(table=tables().filter(lambda table: table.mpi == "mpich"), ranks_per_node=st.integers(1, 8), data=st.data())
def test_mpich_s_decisions(table: CollectivesTable, ranks_per_node: int, data: st.DataObject) -> None:
    """Each message uses the table's algorithm if it is usable, else MPICH's own decision."""
    own = mpich.library_tree(LIBMPI)
    text = mpich.json_text(job(table, Path("/folder"), ranks_per_node=ranks_per_node))
    tree = json.loads(text)
    assert list(tree) == list(own)
    assert len(text) % 4096
    np, size = data.draw(st.integers(2, 6000)), data.draw(sizes_of(table))
    for operation in OPERATIONS:
        has: dict[str, int | str] = {
            **{"collective": {"broadcast": "bcast"}.get(operation, operation), "comm_type": "intra", "comm_size": np},
            **{"avg_msg_size": size, "total_msg_size": size, "count": size, "pow2": 1 << (np.bit_length() - 1)},
            "comm_hierarchy": data.draw(st.sampled_from(["parent", "flat"])),
            "is_op_built_in": data.draw(st.sampled_from(["yes", "no"])),
            "is_commutative": "yes",
        }
        found, parameters = chosen(tree, has)
        expected = expected_rule(table, operation, np, ranks_per_node, min(size, LARGEST_INT - 1))
        name = algorithms_of("mpich", operation)[str(expected.library_algorithm)] if expected else ""
        takes = {
            "smp": has["comm_hierarchy"] == "parent",
            "scatter_recursive_doubling_allgather": np & (np - 1) == 0,
            "recursive_doubling": operation != "allgather" or np & (np - 1) == 0,
        }
        fits = operation != "allreduce" or (has["is_op_built_in"] == "yes" and size >= int(has["pow2"]))
        if expected and fits and takes.get(name, True):
            assert found == f"MPIR_{str(has['collective']).capitalize()}_intra_{name}"
            chunk_sizes = [key for key in parameters if key.startswith("chunk_size=")]
            assert not (chunk_sizes and expected.segment_bytes) or chunk_sizes == [
                f"chunk_size={expected.segment_bytes}"
            ]
        else:
            assert (found, parameters) == chosen(own, has)


def rule(operation: Operation, first: int, last: int | None, algorithm: str | None = None, **more: Any) -> Rule:
    fields = {"operation": operation, "np": 4, "ranks_per_node": 1, "bytes_min": first, "bytes_max": last}
    return Rule.model_validate({**fields, "algorithm": "library", "library_algorithm": algorithm, **more})


def test_mpich_s_variables(tmp_path: Path) -> None:
    rules = [
        rule("broadcast", KIB, None, "pipelined_tree", segment_bytes=16384),
        rule("allreduce", KIB, MIB, "recursive_doubling"),
        rule("allreduce", MIB + 1, None, "ring"),
        rule("gather", 1, None),
    ]
    [format_] = [one for one in FORMATS.all().values() if one.file == "mpich-coll.conf"]
    lines = format_.text(job(CollectivesTable(mpi="mpich", rule=rules), tmp_path)).splitlines()
    assert lines[1:] == [
        "MPIR_CVAR_BCAST_INTRA_ALGORITHM=pipelined_tree",
        "MPIR_CVAR_BCAST_TREE_PIPELINE_CHUNK_SIZE=16384",
        "# allreduce: left out; its algorithm depends on the size, which variables cannot express",
    ]


def test_mvapich2_s_variables(tmp_path: Path) -> None:
    """Parsed with the library's regular expression."""
    rules = [
        rule("broadcast", KIB, 8 * KIB, "knomial"),
        rule("broadcast", 8 * KIB + 1, MIB, "scatter_ring_allgather"),
        rule("broadcast", MIB + 1, None, "pipeline"),
        rule("allreduce", KIB, None, "reduce_scatter_allgather"),
    ]
    table = CollectivesTable(mpi="mvapich2", eager_limit_bytes=16384, rule=rules)
    assert environment(job(table, tmp_path)) == {
        "MV2_INTER_BCAST_TUNING": "8:0-8192,5:8193-1048576,9:1048577-+",
        "MV2_INTER_ALLREDUCE_TUNING": "2",
        "MV2_IBA_EAGER_THRESHOLD": "16384",
        "MV2_VBUF_TOTAL_SIZE": "16384",
    }
    parts = re.findall(r"([0-9]+):([0-9]+)-([0-9]+|\+)", environment(job(table, tmp_path))["MV2_INTER_BCAST_TUNING"])
    assert [(first, last) for _, first, last in parts] == [("0", "8192"), ("8193", "1048576"), ("1048577", "+")]
    own = table.model_copy(update={"rule": [rule("broadcast", 1, KIB), *rules[1:]]})
    assert "MV2_INTER_BCAST_TUNING" not in environment(job(own, tmp_path))
    written = {path.name: path.read_text() for path in write_files(job(own, tmp_path))}
    assert "# MV2_INTER_BCAST_TUNING: left out" in written["mvapich2-coll.conf"]


def test_nccl_s_lines(tmp_path: Path) -> None:
    rules = [
        rule("allreduce", 1, MIB, "tree", protocol="ll", np=8, ranks_per_node=4),
        rule("allreduce", MIB + 1, None, "ring", protocol="simple", channels=8, np=8, ranks_per_node=4),
        rule("broadcast", 1, None),
    ]
    table = CollectivesTable(mpi="nccl", rule=rules)
    of = job(table, tmp_path)
    written = {path.name: path for path in write_files(of)}
    assert sorted(written) == ["collectives.toml", "nccl-tuner.csv"]
    assert environment(of) == {"NCCL_TUNER_CONFIG_FILE": str(tmp_path / "nccl-tuner.csv")}
    lines = written["nccl-tuner.csv"].read_text().splitlines()
    assert lines[0].removeprefix("# ").split(",")[:4] == ["collective_type", "min_bytes", "max_bytes", "algorithm"]
    assert list(csv.reader(lines[1:])) == [
        ["allreduce", "1", str(MIB), "tree", "ll", "-1", "2", "8", "-1", "-1"],
        ["allreduce", str(MIB + 1), str(MAX_BYTES), "ring", "simple", "8", "2", "8", "-1", "-1"],
    ]
    with pytest.raises(ValueError, match="ring needs a protocol"):
        CollectivesTable(mpi="nccl", rule=[rule("allreduce", 1, None, "ring")])


def test_a_table_without_algorithms_has_no_library_file(tmp_path: Path) -> None:
    own = [
        rule("allreduce", 1, None),
        Rule(np=4, ranks_per_node=1, bytes_min=KIB, algorithm="chain", chunk_bytes=32768),
    ]
    table = CollectivesTable(mpi="openmpi", eager_limit_bytes=MIB, rule=own)
    of = TableTarget(tmp_path, table, 4, 1)
    (tmp_path / "openmpi-coll-rules.conf").write_text("of an earlier call")
    assert [path.name for path in write_files(of)] == ["collectives.toml", "eager-limit.conf"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["collectives.toml", "eager-limit.conf"]
    assert environment(of) == {"OMPI_MCA_btl_tcp_eager_limit": str(MIB)}
    assert read_table(tmp_path / "collectives.toml") == table


def test_a_library_without_a_decision_tree_is_rejected(tmp_path: Path) -> None:
    table = CollectivesTable(mpi="mpich", rule=[rule("allreduce", 1, None, "ring")])
    other = tmp_path / "libmpi.so"
    for data in (None, b"", b'{"collective=bcast": {"algorithm=MPIR_Bcast": \0'):
        if data is not None:
            other.write_bytes(data)
        with pytest.raises(RequestError, match=r"libmpi.so: (No such file|its decisions are not in the form)"):
            write_files(TableTarget(tmp_path / "folder", table, 4, 1, other))
    assert not (tmp_path / "folder").exists()
