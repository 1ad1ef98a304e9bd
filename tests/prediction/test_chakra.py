"""Chakra execution traces: their bytes, and the graph that they describe."""

import json
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.proto import parse_length_prefixed
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.prediction.chakra import (
    COMM_COLL_NODE,
    COMP_NODE,
    RankTrace,
    chakra_messages,
    chakra_path,
    parse_steps,
    write_chakra,
)
from hvscale.profiling.analyze.gradients import JobGradients
from tests.prediction.replay.test_schedule import TWO_TENSORS, WAIT_AT_THE_END, job, step, tensor

JOB = job((TWO_TENSORS, WAIT_AT_THE_END), (TWO_TENSORS, WAIT_AT_THE_END))

# What Chakra's own classes, generated from et_def.proto, make of the same fields.
ALL_REDUCE_NODE = (
    "0803120b636f6e762e77656967687418072a0301c80130dc0b520e0a0969735f6370755f6f70d80100520d0a09636f6d6d5f747970"
    "65480052100a09636f6d6d5f73697a65488080800252110a056474797065ea0107666c6f6174333252080a04737465704807"
)
COMPUTATION_NODE = (
    "0804120b636f6d7075746174696f6e18042a010330dc0b38fa01520e0a0969735f6370755f6f70d8010052080a04737465704807"
)
METADATA = "0a05302e302e3412060a026e704802"


def test_messages_are_encoded_as_by_chakra() -> None:
    made = chakra_messages()
    about: dict[str, bool | int | str] = {
        "is_cpu_op": False,
        "comm_type": 0,
        "comm_size": 4194304,
        "dtype": "float32",
        "step": 7,
    }
    all_reduce = made.node(
        id=3,
        name="conv.weight",
        type=COMM_COLL_NODE,
        data_deps=[1, 200],
        start_time_micros=1500,
        attr=made.attributes(about),
    )
    assert all_reduce.SerializeToString().hex() == ALL_REDUCE_NODE
    computation = made.node(
        id=4,
        name="computation",
        type=COMP_NODE,
        data_deps=[3],
        start_time_micros=1500,
        duration_micros=250,
        attr=made.attributes({"is_cpu_op": False, "step": 7}),
    )
    assert computation.SerializeToString().hex() == COMPUTATION_NODE
    metadata = made.metadata(version="0.0.4", attr=made.attributes({"np": 2}))
    assert metadata.SerializeToString().hex() == METADATA


def read(path: Path) -> tuple[Any, list[Any]]:
    """The metadata of a file and its nodes."""
    made, nodes = chakra_messages(), []
    with path.open("rb") as stream:
        metadata = parse_length_prefixed(made.metadata, stream)
        while (node := parse_length_prefixed(made.node, stream)) is not None:
            nodes.append(node)
    return metadata, nodes


def attributes(message: Any) -> dict[str, Any]:
    return {one.name: getattr(one, one.WhichOneof("value")) for one in message.attr}


def test_a_file_for_each_rank(tmp_path: Path) -> None:
    paths = write_chakra(JOB, [1, 2], tmp_path / "trace.et", "runs/x")
    assert paths == [tmp_path / "trace.0.et", tmp_path / "trace.1.et"]
    metadata, nodes = read(paths[1])
    assert metadata.version == "0.0.4"
    assert attributes(metadata) == {
        "writer": "hvscale",
        "run": "runs/x",
        "np": 2,
        "rank": 1,
        "recorded": "gradients",
    }
    assert [node.id for node in nodes] == list(range(len(nodes)))
    assert {attributes(node)["step"] for node in nodes} == {1, 2}
    assert sorted(tmp_path.iterdir()) == paths


def test_the_graph_of_a_step() -> None:
    """Two gradients, and a wait for both."""
    nodes = list(RankTrace(JOB, 0, [1, 2]).nodes())
    seen = [(node.name, node.start_time_micros, node.duration_micros, list(node.data_deps)) for node in nodes[:8]]
    assert seen == [
        ("computation", 0, 100_000, []),
        ("a", 100_000, 0, [0]),
        ("computation", 100_000, 110_000, [0]),
        ("b", 210_000, 0, [2]),
        ("computation", 210_000, 90_000, [2]),
        ("computation", 800_000, 200_000, [4, 1, 3]),
        ("computation", 1_000_000, 100_000, [5]),
        ("a", 1_100_000, 0, [6]),
    ]
    about = {"is_cpu_op": False, "comm_type": 0, "comm_size": 4, "dtype": "float32", "step": 1}
    assert attributes(nodes[1]) == about


def test_the_next_step_waits_for_gradients_that_this_one_left() -> None:
    steps = [step(number, [0.1, 0.2], [(1, 0.3, 0.1)], [0, 1]) for number in (1, 2)]
    nodes = list(RankTrace(job((TWO_TENSORS, steps)), 0, [1, 2]).nodes())
    (second,) = [node.id for node in nodes if node.name == "b" and attributes(node)["step"] == 1]
    following = next(node for node in nodes if attributes(node)["step"] == 2)
    assert second in following.data_deps


def test_computation_after_a_wait_depends_on_all_groups_that_it_waited_for() -> None:
    tensors = [tensor("g[0]", "g"), tensor("g[1]", "g"), tensor("h[0]", "h"), tensor("h[1]", "h")]
    one = replace(step(1, [0.1, 0.1, 0.2, 0.2], [(4, 0.3, 0.1)], [0, 1, 2, 3]), handles=np.array([2]))
    nodes = list(RankTrace(job((tensors, [one])), 0, [1]).nodes())
    messages = {node.id for node in nodes if node.type == COMM_COLL_NODE}
    assert len(messages) == 4
    assert messages <= set(nodes[-1].data_deps)


def test_a_process_set_is_a_process_group() -> None:
    one = tensor("a").model_copy(update={"process_set": 3})
    (node,) = [
        node
        for node in RankTrace(job(([one], [step(1, [0.1], [(1, 0.2, 0.1)], [0])])), 0, [1]).nodes()
        if node.name == "a"
    ]
    assert attributes(node)["pg_name"] == "3"


@st.composite
def recorded_jobs(draw: st.DrawFn) -> JobGradients:
    """Steps of 1 s with random enqueue times and waits, in order of time."""
    count = draw(st.integers(1, 6))
    tensors = [tensor(f"t{number}") for number in range(count)]
    steps = []
    for number in range(1, draw(st.integers(2, 5))):
        positions = draw(st.lists(st.integers(1, count), max_size=3, unique=True).map(sorted))
        moments = sorted(draw(st.lists(st.floats(0, 0.9), min_size=count + 2 * len(positions), max_size=50)))
        enqueued, waits, at = [], [], iter(moments)
        for place in range(count):
            enqueued.append(next(at))
            if place + 1 in positions:
                begin, end = next(at), next(at)
                waits.append((place + 1, begin, end - begin))
        steps.append(step(number, enqueued, waits, draw(st.permutations(range(count)))))
    return job((tensors, steps))


@given(recorded_jobs())
def test_a_trace_computes_as_long_as_the_rank_and_has_no_cycle(made: JobGradients) -> None:
    nodes = list(RankTrace(made, 0, made.numbers).nodes())
    assert all(dependency < node.id for node in nodes for dependency in node.data_deps)
    computed = sum(node.duration_micros for node in nodes if node.type == COMP_NODE)
    assert computed == pytest.approx(1e6 * float((made.seconds - made.blocked).sum()), abs=1)
    # Computation is sequential, and each gradient of each step is reduced once.
    chain = [node for node in nodes if node.type == COMP_NODE]
    assert all(first.id in second.data_deps for first, second in pairwise(chain))
    reduced = [(node.name, attributes(node)["step"]) for node in nodes if node.type == COMM_COLL_NODE]
    assert sorted(reduced) == sorted((one.name, number) for one in made.tensors for number in made.numbers)
    # If communication takes no time, the longest path is the computation.
    finish = np.zeros(len(nodes))
    for node in nodes:
        finish[node.id] = node.duration_micros + max((finish[one] for one in node.data_deps), default=0)
    assert finish.max(initial=0) == computed


@pytest.mark.parametrize(
    ("text", "expected"), [(None, [1, 2, 4]), ("2", [2]), ("2-9", [2, 4]), ("0-3", [1, 2]), (" 4 ", [4])]
)
def test_steps_are_selected_by_their_numbers(text: str | None, expected: list[int]) -> None:
    assert parse_steps(text, [1, 2, 4]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "--steps 3: the recording has steps 1 to 4"),
        ("4-2", "--steps 4-2: the recording has steps 1 to 4"),
        ("x", "--steps x: not a step or a range"),
        ("1-2-3", "--steps 1-2-3: not a step or a range"),
        ("-1", "--steps -1: not a step or a range"),
        ("9" * 5000, "not a step or a range"),
    ],
)
def test_invalid_steps_are_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_steps(text, [1, 2, 4])
    assert message in str(error.value)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    target = chakra_path(tmp_path / "no/trace", 0)
    with pytest.raises(RequestError, match=r"cannot write .*trace\.0\.et: No such file or directory"):
        write_chakra(JOB, [1], tmp_path / "no/trace", "x")
    assert not target.parent.exists()


def test_names_that_are_not_utf_8_are_written(tmp_path: Path) -> None:
    odd = job(([tensor("a\udcff")], [step(1, [0.1], [(1, 0.2, 0.1)], [0])]))
    (path,) = write_chakra(odd, [1], tmp_path / "trace", "runs/\udcfe")
    metadata, nodes = read(path)
    assert attributes(metadata)["run"] == r"runs/\udcfe"
    assert nodes[1].name == r"a\udcff"


@pytest.mark.parametrize("name", ["", ".", "/", ".."])
def test_a_path_without_a_file_name_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="give a file name"):
        write_chakra(JOB, [1], Path(name), "x")


def test_chakras_own_reader_loads_a_trace(tmp_path: Path) -> None:
    jsonizer = shutil.which("chakra_jsonizer")
    if jsonizer is None:
        pytest.skip("Chakra is not installed: its repository has the installer, and no registry has the package")
    first, _ = write_chakra(JOB, JOB.numbers, tmp_path / "trace", "runs/x")
    output = tmp_path / "trace.json"
    subprocess.run([jsonizer, "--input_filename", str(first), "--output_filename", str(output)], check=True)
    metadata, *nodes = documents(output.read_text())
    assert metadata["version"] == "0.0.4"
    assert len(nodes) == len(read(first)[1])
    assert [node["name"] for node in nodes if node["type"] == "COMM_COLL_NODE"] == ["a", "b"] * len(JOB.numbers)


def documents(text: str) -> list[dict[str, Any]]:
    """JSON objects that follow each other without a separator."""
    found, decoder, position = [], json.JSONDecoder(), 0
    while position < len(text):
        document, position = decoder.raw_decode(text, position)
        found.append(document)
    return found
