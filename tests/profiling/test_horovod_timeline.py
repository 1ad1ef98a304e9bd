"""Horovod's timeline: as it is, as a dead job leaves it, and as no Horovod would write it."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.errors import RequestError
from hvscale.profiling import breakdown, timeline_environment
from hvscale.profiling.sources import horovod_timeline
from hvscale.profiling.sources.horovod_timeline import OPERATIONS, Timeline
from tests.profiling.conftest import PROGRAMS, MakeRun, Mpi

Messages = list[tuple[str, int, int]]


class Writer:
    """Writes events as Horovod's TimelineWriter does, byte for byte."""

    def __init__(self) -> None:
        self.text = ""
        self.time = 0
        self.tensors: dict[str, int] = {}
        self.truth: Messages = []

    def event(self, tensor: str, phase: str, name: str = "", args: str = "") -> None:
        self.time += 1
        if not self.text:
            start = '{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":1795223215382502}},\n'
            self.text = (
                f'[\n{start}{{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {{"sort_index": 0}}}},\n'
            )
        else:
            self.text = self.text.removesuffix("]") + ","
        if tensor not in self.tensors:
            pid = self.tensors[tensor] = len(self.tensors) + 1
            self.text += f'{{"name": "process_name", "ph": "M", "pid": {pid}, "args": {{"name": "{tensor}"}}}},\n'
            self.text += (
                f'{{"name": "process_sort_index", "ph": "M", "pid": {pid}, "args": {{"sort_index": {pid}}}}},\n'
            )
        self.text += f'{{"ph": "{phase}"' + (f', "name": "{name}"' if phase != "E" else "")
        self.text += f', "ts": {self.time}, "pid": {self.tensors[tensor]}' + (', "dur": 0' if phase == "X" else "")
        self.text += (f', "args": {{{args}}}' if args else "") + "}]"

    def message(
        self, operation: str, activity: str, shapes: dict[str, list[int]], microseconds: int, sized: bool = True
    ) -> None:
        for tensor in shapes:
            self.event(tensor, "B", f"NEGOTIATE_{operation}")
            self.event(tensor, "X", "0")
            self.event(tensor, "E")
        for tensor in shapes:
            self.event(tensor, "B", operation)
        for name in ("MEMCPY_IN_FUSION_BUFFER", activity, "MEMCPY_OUT_FUSION_BUFFER"):
            for tensor in shapes:
                self.event(tensor, "B", name)
            self.time += microseconds - 1 if name == activity else 0
            for tensor in shapes:
                self.event(tensor, "E")
        size = 0
        for tensor, shape in shapes.items():
            self.event(tensor, "E", args=f'"dtype": "float32", "shape": "{shape}"' if sized else "")
            elements = 4
            for extent in shape:
                elements *= extent
            size += elements if sized else 0
        name = {
            "ALLREDUCE": "allreduce",
            "BROADCAST": "broadcast",
            "ALLGATHER": "allgather",
            "REDUCESCATTER": "reduce-scatter",
        }[operation]
        self.truth.append((name, size, microseconds * 1000))


def example() -> Writer:
    writer = Writer()
    for step in range(3):
        writer.message("ALLREDUCE", "GLOO_ALLREDUCE", {"a": [10, 10], "b": [], "c": [7]}, 500 + step)
        writer.message("ALLREDUCE", "NCCL_ALLREDUCE", {"d, {odd]": [1 << 20]}, 9000)
        writer.message("ALLGATHER", "MPI_ALLGATHER", {"e": [3, 5]}, 40)
    return writer


def read(text: str) -> tuple[Timeline, Messages]:
    timeline = Timeline()
    timeline.read(io.StringIO(text))
    events = timeline.events(2)
    return timeline, [
        (OPERATIONS[operation], size, duration)
        for operation, size, duration in zip(
            events.operation.tolist(), events.bytes.tolist(), events.duration_ns.tolist(), strict=True
        )
    ]


def test_fused_tensors_are_one_message() -> None:
    writer = example()
    json.loads(writer.text)
    timeline, found = read(writer.text)
    assert found == writer.truth
    assert timeline.damaged == 0
    assert found[0] == ("allreduce", 4 * (100 + 1 + 7), 500_000)
    assert timeline.events(2).start_ns[0] > 1795223215382502 * 1000


def test_a_reduce_scatter_counts_every_part() -> None:
    writer = Writer()
    writer.message("REDUCESCATTER", "GLOO_REDUCESCATTER", {"a": [5]}, 10)
    assert read(writer.text)[1] == [("reduce-scatter", 2 * 20, 10_000)]


def test_a_timeline_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = example()
    for characters in (1, 7, 64, 1000):
        monkeypatch.setattr(horovod_timeline, "CHUNK_CHARACTERS", characters)
        if characters * 8 > 200:  # an event must fit into a few pieces
            assert read(writer.text)[1] == writer.truth


@settings(deadline=None)
@given(st.integers(0, len(example().text)))
def test_a_timeline_cut_anywhere_gives_the_messages_before_the_cut(length: int) -> None:
    writer = example()
    timeline, found = read(writer.text[:length])
    assert timeline.damaged <= 1
    assert found == writer.truth[: len(found)]
    told = len(
        re.findall(r'"shape": "[^"]*"}}', writer.text[:length])
    )  # in each of three steps: three tensors, one, one
    assert len(found) >= told // 5 * 3


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(example().text) - 1), st.binary(min_size=1, max_size=40))
def test_garbage_never_crashes(at: int, garbage: bytes) -> None:
    text = example().text
    timeline, found = read(text[:at] + garbage.decode(errors="replace") + text[at + len(garbage) :])
    assert len(found) == len(timeline.whole())
    assert all(size >= 0 and duration >= 0 for _, size, duration in found)


KEYS = st.sampled_from(["ph", "ts", "pid", "name", "args", "dtype", "shape"])
JSON = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"ph": st.sampled_from(["B", "E", "M", "X"]) | JSON, "pid": st.integers(0, 2) | JSON},
            optional={"ts": st.integers() | JSON, "name": st.just("GLOO_ALLREDUCE") | JSON, "args": JSON},
        ),
        max_size=8,
    )
)
def test_events_of_any_content_never_crash(events: list[object]) -> None:
    timeline, found = read(json.dumps(events))
    assert len(found) == len(timeline.whole())
    assert all(size >= 0 and duration >= 0 for _, size, duration in found)


def test_messages_without_a_size_are_counted_and_said(make_run: MakeRun) -> None:
    run = make_run(2, "Gloo")
    writer = example()
    writer.message("BROADCAST", "GLOO_BCAST", {"f": [9]}, 77, sized=False)
    run.timeline.write_text(writer.text)
    result = breakdown(run)
    assert (result.source, result.ranks, result.np) == ("horovod-timeline", [0], 2)
    broadcast = next(row for row in result.rows if row.operation == "broadcast")
    assert (broadcast.bytes_min, broadcast.bytes_max, broadcast.calls) == (0, 0, 2)
    assert broadcast.seconds == pytest.approx(2 * 77e-6)
    assert [("rank 0" in warning, "1 of broadcast" in warning) for warning in result.warnings] == [
        (True, False),
        (False, True),
    ]


def test_what_is_no_timeline_is_refused(make_run: MakeRun) -> None:
    run = make_run(2, "Gloo")
    for text in ("nothing of the kind", '{"rows": [1, 2]}', "[[[[", "\0" * 100):
        run.timeline.write_text(text)
        with pytest.raises(RequestError, match="not a timeline"):
            breakdown(run)
    run.timeline.write_text("")
    assert "no collective" in breakdown(run).warnings[-1]


def test_horovod_over_gloo(make_run: MakeRun, tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch")
    run = make_run(2, "Gloo")
    launcher = Path(sys.executable).with_name("horovodrun")
    path = f"{launcher.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **timeline_environment(run)}
    command = [str(launcher), "--gloo", "-np", "2", sys.executable, str(PROGRAMS / "fused.py")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(row.operation, row.calls, row.bytes) for row in breakdown(run).rows} == {
        ("allreduce", 4, 2 * (4000 + 4 * (100 + 600 + 5))),
        ("allgather", 2, 2 * (5 * 4 * 8)),
        ("broadcast", 2, 0),
        ("reduce-scatter", 2, 2 * (18 * 4)),
    }


def test_horovod_over_mpi_is_seen_whole(open_mpi: Mpi, make_run: MakeRun) -> None:
    pytest.importorskip("horovod.torch")
    run = make_run(2)
    open_mpi.record(run, 2, [sys.executable, str(PROGRAMS / "fused.py")], OMP_NUM_THREADS="1")
    result = breakdown(run, "64,65536")
    assert result.warnings == []
    found = {
        row.operation: (row.calls, row.bytes)
        for row in result.rows
        if row.bytes_min > 64 or row.operation == "broadcast"
    }
    assert found["allreduce"] == (4, 2 * (4000 + 4 * (100 + 600 + 5)))
