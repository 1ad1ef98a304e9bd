"""The decision table: its TOML, its compact form in the C library, the selected rule, the trees."""

import ctypes
import math
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hvscale.comm_tuning.collectives.tables.table import (
    MAX_BYTES,
    CollectivesTable,
    Rule,
    checksum,
    nearest,
    read_table,
)
from hvscale.comm_tuning.knobs.library import algorithms_of, segmented_algorithms
from hvscale.core.errors import RequestError
from tests.native import FLAGS, NATIVE

ALGORITHMS = ["library", "flat", "chain", "k-nomial", "two-level"]


class Choice(ctypes.Structure):
    """`struct choice` of table.h."""

    _fields_ = [
        ("algorithm", ctypes.c_int),
        ("chunk", ctypes.c_uint64),
        ("depth", ctypes.c_int),
        ("radix", ctypes.c_int),
    ]


class Rules(ctypes.Structure):
    """`struct rules` of table.h."""

    _fields_ = [
        ("first", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("ranks", ctypes.c_int),
        ("ours", ctypes.c_bool),
    ]


class Place(ctypes.Structure):
    """`struct tree_place` of trees.h."""

    _fields_ = [("parent", ctypes.c_int), ("count", ctypes.c_int), ("children", ctypes.POINTER(ctypes.c_int))]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The C files that need no MPI."""
    library = tmp_path_factory.mktemp("native") / "parts.so"
    sources = [str(NATIVE / "broadcast" / f"{name}.c") for name in ("table", "trees")]
    subprocess.run(["cc", *FLAGS, "-fPIC", "-shared", "-o", str(library), *sources], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.table_read.restype = ctypes.c_char_p
    loaded.table_made_with.restype = ctypes.c_char_p
    loaded.table_checksum.restype = ctypes.c_uint64
    loaded.table_rules.restype = Rules
    loaded.table_may_choose.argtypes = [ctypes.POINTER(Rules), ctypes.c_uint64]
    loaded.table_may_choose.restype = ctypes.c_bool
    loaded.table_choose.argtypes = [ctypes.POINTER(Rules), ctypes.c_int, ctypes.c_uint64]
    loaded.table_choose.restype = Choice
    return loaded


@st.composite
def rules_of(draw: st.DrawFn, mpi: str, operation: str, np: int, ranks_per_node: int) -> list[Rule]:
    """Rules whose ranges do not overlap, with or without gaps."""
    edges = sorted(draw(st.sets(st.integers(1, MAX_BYTES - 1), min_size=2, max_size=8)))
    rules = []
    for first, after in pairwise(edges):
        if not draw(st.booleans()):
            continue
        algorithm = draw(st.sampled_from(ALGORITHMS)) if operation == "broadcast" else "library"
        fields: dict[str, int | str | None] = {}
        if algorithm == "library":
            named = draw(st.none() | st.sampled_from(list(algorithms_of(mpi, operation))))
            fields["library_algorithm"] = named
            fields["segment_bytes"] = (
                draw(st.none() | st.integers(1, 2**31 - 1)) if named in segmented_algorithms(mpi, operation) else None
            )
        else:
            fields["chunk_bytes"] = draw(st.integers(1, 2 << 20 if algorithm == "two-level" else 1 << 30))
            fields["depth"] = draw(st.integers(1, 1024))
        if algorithm == "k-nomial":
            fields["radix"] = draw(st.integers(2, 2**31 - 1))
        last = None if after == edges[-1] and draw(st.booleans()) else after - 1
        rules.append(
            Rule.model_validate(
                {
                    "operation": operation,
                    "np": np,
                    "ranks_per_node": ranks_per_node,
                    "bytes_min": first,
                    "bytes_max": last,
                    "algorithm": algorithm,
                    **fields,
                }
            )
        )
    return rules


@st.composite
def tables(draw: st.DrawFn) -> CollectivesTable:
    places = draw(
        st.sets(st.integers(2, 5000).flatmap(lambda np: st.tuples(st.just(np), st.integers(1, np))), max_size=4)
    )
    mpi = draw(st.sampled_from(["openmpi", "mpich"]))
    operations = draw(st.sets(st.sampled_from(["broadcast", "allreduce", "allgather", "gather"]), max_size=2))
    rules = [
        rule for name in sorted(operations) for place in sorted(places) for rule in draw(rules_of(mpi, name, *place))
    ]
    limit = draw(st.none() | st.integers(1, 2**31 - 1))
    return CollectivesTable(mpi=mpi, eager_limit_bytes=limit, rule=draw(st.permutations(rules)))


def chosen(table: CollectivesTable, np: int, ranks_per_node: int, size: int) -> Rule | None:
    """The rule, as docs/reference/collectives-table.md describes; None: the library."""
    broadcasts = [rule for rule in table.rule if rule.operation == "broadcast"]
    if not broadcasts:
        return None
    rules = [rule for rule in broadcasts if rule.np == nearest({rule.np for rule in broadcasts}, np)]
    on_a_node = nearest({rule.ranks_per_node for rule in rules}, ranks_per_node)
    held = [rule for rule in rules if rule.ranks_per_node == on_a_node and rule.bytes_min <= size <= rule.last]
    return held[0] if held and held[0].algorithm != "library" else None


@given(table=tables())
def test_toml_round_trip(tmp_path_factory: pytest.TempPathFactory, table: CollectivesTable) -> None:
    path = tmp_path_factory.mktemp("table") / "table.toml"
    path.write_text(table.toml())
    assert read_table(path) == table


@given(table=tables(), data=st.data())
def test_the_c_library_selects_the_same_rule(
    native: ctypes.CDLL, tmp_path_factory: pytest.TempPathFactory, table: CollectivesTable, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("table") / "compact"
    path.write_bytes(table.compact())
    assert native.table_read(bytes(path)) is None
    assert native.table_made_with() == table.mpi.encode()
    assert native.table_checksum() == checksum(table.compact().rpartition(b"check ")[0])
    edges = [edge for rule in table.rule for edge in (rule.bytes_min, rule.last)]
    near = {edge + step for edge in edges for step in (-1, 0, 1) if 1 <= edge + step <= MAX_BYTES}
    size = data.draw(st.sampled_from(sorted(near | {1})) | st.integers(1, MAX_BYTES))
    known = sorted({rule.np for rule in table.rule} | {2})
    np = data.draw(st.sampled_from(known) | st.integers(2, 10_000))
    ranks_per_node = data.draw(st.integers(1, np))
    rules = native.table_rules(np)
    choice = native.table_choose(rules, ranks_per_node, size)
    expected = chosen(table, np, ranks_per_node, size)
    assert ALGORITHMS[choice.algorithm] == (expected.algorithm if expected else "library")
    if expected:
        assert (choice.chunk, choice.depth) == (expected.chunk_bytes, expected.depth)
        assert expected.algorithm != "k-nomial" or choice.radix == expected.radix
        assert native.table_may_choose(rules, size)
        assert (rules.ranks, rules.ours) == (expected.np, True)


@given(data=st.data(), table=tables())
def test_a_changed_byte_is_detected(
    native: ctypes.CDLL, tmp_path_factory: pytest.TempPathFactory, table: CollectivesTable, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("table") / "compact"
    whole = bytearray(table.compact())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    assert native.table_read(bytes(path)) is not None
    assert native.table_checksum() == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("np = 4", "is not valid TOML"),
        ('algorithm = "chain"\nradix = 3', "radix does not apply to chain: remove it"),
        ('algorithm = "library"\nchunk_bytes = 3', "chunk_bytes does not apply to library"),
        ('algorithm = "two-level"\nchunk_bytes = 4194304', "chunk_bytes of two-level must be at most 2097152"),
        ('algorithm = "chain"\nbytes_min = 9\nbytes_max = 8', "bytes_max 8 is less than bytes_min 9"),
        ('algorithm = "chain"\nranks_per_node = 5', "ranks_per_node 5 is more than np 4"),
        (
            'algorithm = "ring"',
            "rule.0.algorithm: Input should be 'library', 'flat', 'chain', 'k-nomial' or 'two-level'",
        ),
        ('algorithm = "chain"\nsegment_bytes = 5', "segment_bytes does not apply to chain"),
        ('algorithm = "library"\nsegment_bytes = 5', "segment_bytes needs a library_algorithm"),
        (
            'algorithm = "chain"\noperation = "gather"',
            'chain supports only broadcast: for gather use algorithm = "library"',
        ),
        (
            'algorithm = "library"\nlibrary_algorithm = "magic"',
            "openmpi has no broadcast algorithm magic: use auto, linear,",
        ),
        (
            'algorithm = "library"\nlibrary_algorithm = "linear"\nsegment_bytes = 5',
            "openmpi's broadcast algorithm linear has no segments: remove segment_bytes",
        ),
        (
            'algorithm = "library"\nlibrary_algorithm = "ring"\noperation = "allreduce"\nchannels = 2',
            "protocol and channels apply only to NCCL, and this table is for openmpi",
        ),
        (
            'algorithm = "chain"\nsegment = 5',
            "rule.0.segment: Extra inputs are not permitted; use algorithm, bytes_max,",
        ),
        ('algorithm = "chain"\n[speed]', "speed: Extra inputs are not permitted; use eager_limit_bytes, mpi,"),
        ('algorithm = "chain"\nchunk_bytes = "32K"', "rule.0.chunk_bytes: Input should be a valid integer"),
    ],
)
def test_an_invalid_table_is_rejected_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    ranks = "" if "ranks_per_node" in text else "ranks_per_node = 1\n"
    path = tmp_path / "table.toml"
    path.write_text(f'mpi = "openmpi"\n[[rule]]\nnp = 4\n{ranks}{text}\n')
    with pytest.raises(RequestError, match=r"^--collectives .*table.toml") as raised:
        read_table(path)
    assert why in str(raised.value)
    assert "Value error" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_rules_must_not_overlap() -> None:
    one = Rule(np=4, ranks_per_node=1, bytes_min=1, bytes_max=100, algorithm="chain")
    other = Rule(np=4, ranks_per_node=1, bytes_min=100, algorithm="flat")
    with pytest.raises(ValidationError, match="two rules cover broadcast of 100 bytes on 4 ranks, 1 per node"):
        CollectivesTable(mpi="openmpi", rule=[other, one])


@pytest.mark.parametrize(
    ("algorithm", "radix"), [("flat", 2), ("chain", 2), *(("k-nomial", radix) for radix in (2, 3, 4, 7, 100))]
)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9, 16, 17, 64, 100])
def test_a_tree_reaches_every_member_once(native: ctypes.CDLL, algorithm: str, radix: int, size: int) -> None:
    parents, reached = {}, []
    for number in range(size):
        children = (ctypes.c_int * size)()
        place = Place(children=children)
        native.tree_place(ALGORITHMS.index(algorithm), radix, number, size, ctypes.byref(place))
        parents[number] = place.parent
        reached += [(child, number) for child in children[: place.count]]
    assert parents.pop(0) == -1
    assert sorted(reached) == sorted(parents.items())
    hops = {0: 0}
    for number in range(1, size):
        hops[number] = hops[parents[number]] + 1
    digits = math.ceil(math.log(size, radix) - 1e-9)
    assert max(hops.values()) <= {"flat": 1, "chain": size - 1, "k-nomial": digits}[algorithm]
