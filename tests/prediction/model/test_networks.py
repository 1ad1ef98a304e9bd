"""Documented networks: the shipped files, the costs that follow from a file, and invalid files."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.prediction.model.networks import (
    LINES,
    LONGEST_START_UP,
    SLOWEST_LINK,
    DocumentedCosts,
    Layout,
    Links,
    load_network,
    network_names,
    parse_network,
)

SMALLEST = """
description = "two levels"
ranks_per_node = 2
blocking = true

[within_node]
alpha_seconds = 1e-6
bytes_per_second = 1e10

[between_nodes]
alpha_seconds = 1e-5
bytes_per_second = 1e9

[[algorithm]]
kind = "ring"
"""
KINDS = sorted(LINES)
EXPONENTS = st.integers(0, 4)


def costs_of(text: str = SMALLEST, ranks_per_node: int = 2) -> DocumentedCosts:
    return DocumentedCosts("test", parse_network(text, "test"), ranks_per_node)


def seconds(costs: DocumentedCosts, size: float, ranks: int) -> float:
    return float(costs.message_seconds(np.array(size), ranks))


@pytest.mark.parametrize("name", network_names())
def test_each_shipped_network_gives_a_source_for_each_figure(name: str) -> None:
    costs = load_network(name)
    assert costs.network.without_source() == []
    assert costs.description == f"documented, not measured: {name}"
    assert costs.largest_np == 0


@pytest.mark.parametrize("name", network_names())
def test_shipped_costs_grow_with_bytes_and_are_zero_for_one_rank(name: str) -> None:
    costs, sizes = load_network(name), np.geomspace(1, 1e9, 40)
    for ranks in (2, 3, 8, 64, 512, 4096):
        found = costs.message_seconds(sizes, ranks)
        assert (np.diff(found) > 0).all()
        assert found[0] > 0
        assert costs.agreement_seconds(ranks) > 0
        assert (costs.copy_seconds(sizes, ranks) >= 0).all()
    assert not costs.message_seconds(sizes, 1).any()
    assert costs.agreement_seconds(1) == 0


def test_a_ring_of_two_nodes_sends_the_bytes_once_each_way() -> None:
    """Two messages of half the bytes."""
    assert seconds(costs_of(ranks_per_node=1), 1e6, 2) == pytest.approx(2 * (1e-5 + 0.5e6 / 1e9))


def test_nccl_s_ring_has_the_latency_of_nccl_s_own_model() -> None:
    """A node of 4 with NVLink: 8.4 us + 6 hops of 3.4 us; 2 nodes: 2 hops of 9.6 us among 14."""
    costs = load_network("infiniband-edr-nccl")
    ring = costs.network.algorithm[0]
    only_ring = DocumentedCosts("ring", costs.network.model_copy(update={"algorithm": [ring]}), 4)
    assert seconds(only_ring, 0, 4) == pytest.approx(8.4e-6 + 6 * 3.4e-6)
    assert seconds(only_ring, 0, 8) == pytest.approx(8.4e-6 + 12 * 3.4e-6 + 2 * 9.6e-6)


@given(EXPONENTS, EXPONENTS)
def test_halving_and_doubling_is_the_sum_of_its_messages(local_exponent: int, node_exponent: int) -> None:
    """Adds up the messages of the real algorithm; the ranks of a node share its link."""
    local, nodes = 2**local_exponent, 2**node_exponent
    links, size = Links(1e-6, 1e-5, 1e-10, 1e-9, 3e-10), 1e6
    expected = 0.0
    for exponent in range(local_exponent + node_exponent):
        part, is_within = size / 2 ** (exponent + 1), 2**exponent < local
        alpha, per_byte = (
            (links.within_alpha, links.within_per_byte)
            if is_within
            else (links.between_alpha, links.between_per_byte * local)
        )
        expected += 2 * (alpha + part * per_byte) + part * links.reduce_per_byte
    alpha, per_byte = LINES["reduce-scatter-all-gather"](links, Layout.of(local * nodes, local))
    assert alpha + size * per_byte == pytest.approx(expected, rel=1e-9, abs=1e-15)


@given(EXPONENTS, EXPONENTS)
def test_recursive_doubling_is_the_sum_of_its_messages(local_exponent: int, node_exponent: int) -> None:
    local, nodes = 2**local_exponent, 2**node_exponent
    links, size = Links(1e-6, 1e-5, 1e-10, 1e-9, 3e-10), 1e6
    within = links.within_alpha + size * (links.within_per_byte + links.reduce_per_byte)
    between = links.between_alpha + size * (local * links.between_per_byte + links.reduce_per_byte)
    alpha, per_byte = LINES["recursive-doubling"](links, Layout.of(local * nodes, local))
    assert alpha + size * per_byte == pytest.approx(local_exponent * within + node_exponent * between, abs=1e-15)


@pytest.mark.parametrize("kind", KINDS)
@given(ranks=st.integers(2, 600), local=st.integers(1, 16))
def test_no_algorithm_is_faster_than_its_lower_bound(kind: str, ranks: int, local: int) -> None:
    """Rabenseifner's bound: a rank sends and receives at least (np - 1) / np of the bytes twice."""
    links = Links(0, 0, 1e-10, 1e-10, 0)
    _, per_byte = LINES[kind](links, Layout.of(ranks, 1))  # type: ignore[index]
    assert per_byte >= 2 * (ranks - 1) / ranks * 1e-10 * (1 - 1e-9)
    alpha, _ = LINES[kind](Links(1, 1, 0, 0, 0), Layout.of(ranks, local))  # type: ignore[index]
    assert alpha >= math.log2(ranks) - 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_one_node_do_not_use_the_network(kind: str) -> None:
    text = SMALLEST.replace('"ring"', f'"{kind}"')
    fast = text.replace("alpha_seconds = 1e-5", "alpha_seconds = 9").replace("= 1e9", "= 1")
    assert seconds(costs_of(text, 8), 1e6, 8) == seconds(costs_of(fast, 8), 1e6, 8)
    assert seconds(costs_of(text, 8), 1e6, 9) < seconds(costs_of(fast, 8), 1e6, 9)


def test_the_fastest_algorithm_is_taken_for_each_size() -> None:
    both = costs_of(SMALLEST + '\n[[algorithm]]\nkind = "recursive-doubling"\n', 1)
    ring, doubling = costs_of(ranks_per_node=1), costs_of(SMALLEST.replace("ring", "recursive-doubling"), 1)
    assert seconds(both, 8, 64) == seconds(doubling, 8, 64) < seconds(ring, 8, 64)
    assert seconds(both, 1e8, 64) == seconds(ring, 1e8, 64) < seconds(doubling, 1e8, 64)


def test_agreement_uses_its_own_start_up_time() -> None:
    """8 nodes: 3 rounds."""
    own = SMALLEST.replace("= 1e9", "= 1e9\nagreement_alpha_seconds = 2e-6")
    assert costs_of(own, 1).agreement_seconds(8) == pytest.approx(3 * 2e-6, rel=0.1)
    assert costs_of(SMALLEST, 1).agreement_seconds(8) == pytest.approx(3 * 1e-5, rel=0.1)


def test_scaled_and_perturbed_costs() -> None:
    costs, size = costs_of(), np.full(100, 1e7)
    nominal = seconds(costs, 1e7, 16)
    assert seconds(costs.scaled(0.5, 2), 1e7, 16) == pytest.approx(2 * nominal)
    drawn = costs.perturbed(100).message_seconds(size, 16)
    slowest = seconds(costs.scaled(SLOWEST_LINK, LONGEST_START_UP), 1e7, 16)
    assert drawn.shape == (100,)
    assert nominal <= drawn.min() < drawn.max() <= slowest
    assert drawn.std() > 0


def test_a_network_file_registers_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SMALLEST)
    costs = load_network(str(path))
    assert costs.description == "documented, not measured: mine.toml"
    assert costs.ranks_per_node == 2
    assert load_network(str(path), 8).ranks_per_node == 8
    assert "within_node.alpha_seconds" in costs.network.without_source()


def test_an_unknown_name_gets_the_nearest_and_the_list() -> None:
    with pytest.raises(RequestError) as error:
        load_network("infiniband-edr-ncl")
    assert "did you mean infiniband-edr-nccl?" in str(error.value)
    assert all(name in str(error.value) for name in network_names())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = [", "is not valid TOML"),
        (SMALLEST.replace("blocking = true\n", ""), "blocking is missing"),
        (SMALLEST.replace("1e10", "-1"), "within_node.bytes_per_second: Input should be greater than"),
        (SMALLEST.replace("1e-5", "inf"), "between_nodes.alpha_seconds: Input should be"),
        (SMALLEST.replace("bytes_per_second = 1e9", "bandwidth = 1e9"), "between_nodes.bandwidth: unknown field"),
        (SMALLEST.replace("= 1e-5", "= 1e-5\nalpha_second = 1"), "did you mean alpha_seconds?"),
        (SMALLEST.replace('"ring"', '"star"'), "algorithm.0.kind: Input should be"),
        (SMALLEST.replace("ranks_per_node = 2", "ranks_per_node = 0"), "ranks_per_node: Input should be"),
        (SMALLEST + '[algorithm.source]\nkindd = "x"\n', "algorithm.0: source: unknown figure"),
        (SMALLEST.partition("[[algorithm]]")[0], "algorithm is missing"),
    ],
)
def test_an_invalid_file_is_one_line_with_file_and_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(RequestError) as error:
        load_network(str(path))
    assert str(error.value).startswith(f"--network {path}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none.toml", "No such file"), (tmp_path, "not a regular file")):
        with pytest.raises(RequestError, match=message):
            load_network(str(path))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="not text in UTF-8"):
        load_network(str(tmp_path / "bytes.toml"))
