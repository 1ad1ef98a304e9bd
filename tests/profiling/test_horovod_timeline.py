"""Horovod's timeline: complete, truncated by a dead job, and damaged."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Host, Library, RunFolder, RunRecord
from hvscale.profiling import timeline_environment
from hvscale.profiling.analyze.breakdown import breakdown
from hvscale.profiling.analyze.explanation import explained_breakdown
from hvscale.profiling.analyze.horovod_phases import HorovodPhases, horovod_phases
from hvscale.profiling.read import timeline_messages
from hvscale.profiling.read.sources import horovod_timeline
from hvscale.profiling.read.sources.horovod_timeline import Timeline
from hvscale.profiling.read.timeline_messages import OPERATIONS
from tests.conftest import HANG_SECONDS
from tests.profiling.conftest import PROGRAMS, MakeRun, Mpi

Messages = list[tuple[str, int, int]]


class Writer:
    """Writes the same bytes as Horovod's TimelineWriter."""

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
    timeline = Timeline(np_of_job=2)
    timeline.read(io.StringIO(text))
    events = timeline.events.load()
    pieces = list(timeline.events.horovod_messages())
    assert [size for piece in pieces for size in piece.bytes.tolist()] == events.bytes.tolist()
    assert all((piece.phases_ns >= 0).all() for piece in pieces)
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
    assert timeline.events.load().start_ns[0] > 1795223215382502 * 1000


def write_phases(writer: Writer, tensors: list[str], microseconds: dict[str, int]) -> None:
    """Writes one message of four-byte tensors with these durations of its phases.

    Fused tensors begin and end each phase one by one.
    """
    for tensor in tensors:
        writer.event(tensor, "B", "NEGOTIATE_ALLREDUCE")
    writer.time += microseconds["negotiation"]
    for tensor in tensors:
        writer.event(tensor, "E")
    writer.time += microseconds["gap"]
    for tensor in tensors:
        writer.event(tensor, "B", "ALLREDUCE")
    for activity in ("WAIT_FOR_DATA", "QUEUE", "INIT_FUSION_BUFFER", "MEMCPY_IN_FUSION_BUFFER", "NCCL_ALLREDUCE"):
        for tensor in tensors:
            writer.event(tensor, "B", activity)
        writer.time += microseconds[activity]
        for tensor in tensors:
            writer.event(tensor, "E")
    for tensor in tensors:
        writer.event(tensor, "B", "MEMCPY_OUT_FUSION_BUFFER")
    writer.time += microseconds["MEMCPY_OUT_FUSION_BUFFER"]
    for tensor in tensors:  # Horovod ends an operation before its last activity
        writer.event(tensor, "E")
        writer.event(tensor, "E", args='"dtype": "float32", "shape": "[]"')


MICROSECONDS = {
    **{"negotiation": 10_000, "gap": 2_000, "WAIT_FOR_DATA": 3_000, "QUEUE": 4_000, "INIT_FUSION_BUFFER": 50_000},
    **{"MEMCPY_IN_FUSION_BUFFER": 600_000, "NCCL_ALLREDUCE": 7_000_000, "MEMCPY_OUT_FUSION_BUFFER": 80_000},
}
TENSORS = 5


def phases_of(text: str, **variables: str) -> HorovodPhases:
    timeline, _ = read(text)
    found = horovod_phases(timeline.events.horovod_messages(), record(variables))
    assert found is not None
    return found


def record(variables: dict[str, str]) -> RunRecord:
    return RunRecord(
        command=["program"],
        np=2,
        library=Library(flavour="gloo", version="1"),
        host=Host(name="here", kernel="k", cpu="c", cores=2, memory_bytes=1),
        working_directory="/",
        started_at=datetime.now(UTC),
        launch={"env": [f"{name}={value}" for name, value in variables.items()]},
    )


def test_phases_of_a_fused_message_count_once() -> None:
    writer = Writer()
    for _ in range(3):
        write_phases(writer, [f"t{number}" for number in range(TENSORS)], MICROSECONDS)
    (row,) = phases_of(writer.text).operations
    assert (row.operation, row.messages, row.tensors) == ("allreduce", 3, 3 * TENSORS)
    found = row.model_dump()
    for phase, of_one in {
        "negotiation": 10_000,
        "queueing": 2_000 + 3_000 + 4_000,
        "copy_in": 600_000,
        "communication": 7_000_000,
        "copy_out": 80_000,
        "other": 50_000,
    }.items():
        # Each event takes a microsecond; together at most a tenth of a millisecond.
        assert found[f"{phase}_seconds"] == pytest.approx(3 * of_one * 1e-6, abs=3 * 1e-4), phase


def test_a_message_that_was_not_fused_is_not_copied() -> None:
    writer = Writer()
    writer.event("a", "B", "ALLREDUCE")
    writer.event("a", "B", "GLOO_ALLREDUCE")
    writer.time += 500
    writer.event("a", "E")
    writer.event("a", "E", args='"dtype": "float32", "shape": "[7]"')
    found = phases_of(writer.text)
    (row,) = found.operations
    assert (row.copy_in_seconds, row.copy_out_seconds, row.negotiation_seconds, row.queueing_seconds) == (0, 0, 0, 0)
    assert row.communication_seconds == pytest.approx(501e-6)
    assert (found.fusion.fused_messages, found.fusion.fill_mean) == (0, None)


def test_fusion_and_fill_of_the_buffer() -> None:
    writer = Writer()
    sizes = [1, 2, 3, 4, 5, 100]
    for tensors in sizes:
        writer.message("ALLREDUCE", "GLOO_ALLREDUCE", {f"t{number}": [25] for number in range(tensors)}, 100)
    fusion = phases_of(writer.text, HOROVOD_FUSION_THRESHOLD="20000").fusion
    assert [(limits.tensors_min, limits.tensors_max, limits.messages) for limits in fusion.tensors_per_message] == [
        *((1, 1, 1), (2, 2, 1), (3, 4, 2), (5, 8, 1), (65, 128, 1))
    ]
    assert fusion.tensors_per_message_mean == pytest.approx(sum(sizes) / 6)
    assert fusion.tensors_per_message_max == 100
    assert (fusion.threshold_bytes, fusion.fused_messages) == (20000, 5)
    assert fusion.fill_mean == pytest.approx(sum(sizes[1:]) * 100 / 20000 / 5)
    assert fusion.fill_p50 == pytest.approx(400 / 20000)
    assert fusion.fill_max == pytest.approx(100 * 100 / 20000)
    assert phases_of(writer.text).fusion.threshold_bytes == 128 << 20
    for off in ({"HOROVOD_FUSION_THRESHOLD": "0"}, {"HOROVOD_AUTOTUNE": "1"}):
        assert phases_of(writer.text, **off).fusion.fill_mean is None


def test_a_reduce_scatter_counts_every_part() -> None:
    writer = Writer()
    writer.message("REDUCESCATTER", "GLOO_REDUCESCATTER", {"a": [5]}, 10)
    assert read(writer.text)[1] == [("reduce-scatter", 2 * 20, 10_000)]


def test_a_timeline_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = example()
    for characters in (1, 7, 64, 1000):
        monkeypatch.setattr(horovod_timeline, "CHUNK_CHARACTERS", characters)
        if characters * 8 > 200:  # an event must fit into a few chunks
            assert read(writer.text)[1] == writer.truth


@given(st.integers(0, len(example().text)))
def test_a_timeline_truncated_anywhere_gives_the_messages_before(length: int) -> None:
    writer = example()
    timeline, found = read(writer.text[:length])
    assert timeline.damaged <= 1
    assert found == writer.truth[: len(found)]
    ended = len(
        re.findall(r'"shape": "[^"]*"}}', writer.text[:length])
    )  # each of three steps has messages of 3, 1 and 1 tensors
    assert len(found) >= ended // 5 * 3


def test_a_lost_end_costs_one_message() -> None:
    writer = Writer()
    for step in range(5):
        writer.message("ALLREDUCE", "GLOO_ALLREDUCE", {"a": [10], "b": [step]}, 500 + step)
    ends = [match.span() for match in re.finditer(r',{"ph": "E"[^}]*}(?:})?', writer.text)]
    for begin, end in ends:
        _, found = read(writer.text[:begin] + writer.text[end:])
        assert len(set(writer.truth) - set(found)) <= 1


def test_messages_in_a_temporary_file_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(timeline_messages, "MAX_IN_MEMORY_BYTES", 100)
    monkeypatch.setattr(timeline_messages, "BLOCK", 4)
    assert read(example().text)[1] == example().truth
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(RequestError, match=r"missing: No such file or directory\. Set TMPDIR"):
        read(example().text)


COPIES = 5000
PEAK = """
import resource, sys
from pathlib import Path
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.explanation import explained_breakdown

for path in sys.argv[1:]:
    calls = sum(row.calls for row in explained_breakdown(RunFolder.open(Path(path))).rows)
    print(calls, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
"""


def test_memory_does_not_grow_with_the_timeline(make_run: MakeRun, tmp_path: Path) -> None:
    events = example().text.removeprefix("[").removesuffix("]")
    run, small = make_run(2, "Gloo"), tmp_path / "small"
    run.timeline.write_text(f"[{events}]")
    shutil.copytree(run.path, small)
    run.timeline.write_text("[" + ",".join([events] * COPIES) + "]")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, small, run.path], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    (calls, peak), (all_calls, peak_of_all) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert all_calls == calls * COPIES
    # All messages with their phases would take more memory than the file has bytes.
    assert peak_of_all - peak < run.timeline.stat().st_size / 2


@settings(max_examples=200)
@given(st.integers(0, len(example().text) - 1), st.binary(min_size=1, max_size=40))
def test_garbage_never_crashes(at: int, garbage: bytes) -> None:
    text = example().text
    timeline, found = read(text[:at] + garbage.decode(errors="replace") + text[at + len(garbage) :])
    assert len(found) == len(timeline.events)
    assert all(size >= 0 and duration >= 0 for _, size, duration in found)


KEYS = st.sampled_from(["ph", "ts", "pid", "name", "args", "dtype", "shape"])
JSON = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=50)
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
    assert len(found) == len(timeline.events)
    assert all(size >= 0 and duration >= 0 for _, size, duration in found)


def test_messages_without_a_size_are_counted_with_a_warning(make_run: MakeRun) -> None:
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


def test_another_file_is_rejected(make_run: MakeRun) -> None:
    run = make_run(2, "Gloo")
    for text in ("nothing of the kind", '{"rows": [1, 2]}', "[[[[", "\0" * 100):
        run.timeline.write_text(text)
        with pytest.raises(RequestError, match="not a timeline"):
            breakdown(run)
    run.timeline.write_text("")
    assert "no collective" in breakdown(run).warnings[-1]


@pytest.mark.ranks
def test_horovod_over_gloo(make_run: MakeRun, tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch")
    run = make_run(2, "Gloo")
    launcher = Path(sys.executable).with_name("horovodrun")
    path = f"{launcher.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **timeline_environment(run)}
    command = [str(launcher), "--gloo", "-np", "2", sys.executable, str(PROGRAMS / "fused.py")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(row.operation, row.calls, row.bytes) for row in breakdown(run).rows} == {
        ("allreduce", 4, 2 * (400_000 + 4 * (100 + 600_000 + 5))),
        ("allgather", 2, 2 * (5 * 4 * 8)),
        ("broadcast", 2, 0),
        ("reduce-scatter", 2, 2 * (18 * 4)),
    }
    assert_phases(run)


def assert_phases(run: RunFolder) -> None:
    """Checks the phases of fused.py: one message of three tensors went into the fusion buffer."""
    found = explained_breakdown(run).horovod_phases
    assert found is not None
    rows = {row.operation: row for row in found.operations}
    assert (rows["allreduce"].messages, rows["allreduce"].tensors) == (2, 4)
    assert rows["allreduce"].negotiation_seconds > 0
    # Horovod rounds to microseconds: only copies of megabytes are certain to take longer than 0.
    assert rows["allreduce"].copy_in_seconds > 0
    assert rows["allreduce"].copy_out_seconds > 0
    assert rows["allgather"].copy_in_seconds == 0
    assert (found.fusion.fused_messages, found.fusion.tensors_per_message_max) == (1, 3)
    assert found.fusion.fill_max == pytest.approx(4 * (100 + 600_000 + 5) / (128 << 20))


def test_horovod_over_mpi_is_recorded_completely(open_mpi: Mpi, make_run: MakeRun) -> None:
    pytest.importorskip("horovod.torch")
    run = make_run(2)
    more = {"OMP_NUM_THREADS": "1", **timeline_environment(run)}
    open_mpi.record(run, 2, [sys.executable, str(PROGRAMS / "fused.py")], **more)
    result = breakdown(run, "64,65536")
    assert result.source == "hvprof"
    assert_phases(run)
    assert result.warnings == []
    found = {
        row.operation: (row.calls, row.bytes)
        for row in result.rows
        if row.bytes_min > 64 or row.operation == "broadcast"
    }
    assert found["allreduce"] == (4, 2 * (400_000 + 4 * (100 + 600_000 + 5)))
