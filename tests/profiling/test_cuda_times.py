"""Which steps the recorder times by CUDA events. A clock of the test stands for the GPU's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hvscale.profiling.read.gradients_file import RankGradients, read_gradients
from hvscale.profiling.record.rank_side import gradient_recorder
from hvscale.profiling.record.rank_side.gradient_recorder import MOST_INTERVAL, Recorder

NAMES = ("a", "b", "c")
STEP_MS, TENSOR_MS, AFTER_MS = 100, 10, 7
HOROVOD: Any = SimpleNamespace(
    rank=lambda: 0, size=lambda: 2, local_size=lambda: 2, is_initialized=lambda: True, __version__="0.28.1"
)


class Clocks:
    """The GPU's and the host's, in milliseconds. `event_ms`: what each event costs the host."""

    def __init__(self) -> None:
        self.gpu, self.host, self.event_ms = 0.0, 1.0, 0.0
        self.made = self.recorded = 0
        self.streams: set[object] = set()

    def event(self, enable_timing: bool) -> "Event":
        assert enable_timing
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, clocks: Clocks) -> None:
        self.clocks, self.at = clocks, -1.0

    def record(self, stream: object) -> None:
        self.clocks.recorded += 1
        self.clocks.streams.add(stream)
        self.clocks.host += self.clocks.event_ms
        self.at = self.clocks.gpu

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "Event") -> float:
        assert self.at >= 0
        return end.at - self.at


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch._C, "_cuda_getCurrentStream", lambda index: (7, index, 1), raising=False)
    monkeypatch.setattr(
        gradient_recorder, "time", SimpleNamespace(monotonic_ns=lambda: round(1e6 * made.host)), raising=True
    )
    return made


def gradient(device: str = "cuda:0") -> Any:
    of_device = torch.device(device)
    return SimpleNamespace(
        device=of_device,
        is_cuda=of_device.type == "cuda",
        dtype=torch.float32,
        numel=lambda: 8,
        element_size=lambda: 4,
    )


def record(
    clocks: Clocks, folder: Path, steps: int, grouped: bool = False, waits: bool = True, metric_every: int = 0
) -> RankGradients:
    """Record a program: it enqueues a step at once; the GPU takes TENSOR_MS for each gradient.

    It averages a metric over the ranks every `metric_every` steps, after the optimizer's step.
    """
    recorder = Recorder(str(folder), HOROVOD)
    for number in range(1, steps + 1):
        start = clocks.host
        for name in NAMES:
            clocks.gpu += TENSOR_MS
            if grouped:
                recorder.enqueue_group([gradient()] * 2, name, 0)
            else:
                recorder.enqueue(gradient(), name, 0)
        for _ in NAMES if waits else ():
            clocks.gpu += 1  # the GPU does something else between the waits
            recorder.wait(round(1e6 * clocks.host), round(1e6 * clocks.host))
        clocks.gpu += AFTER_MS
        clocks.host = max(clocks.host, start + STEP_MS)
        recorder.mark_step()
        if metric_every and number % metric_every == 0:
            recorder.enqueue(gradient(), "metric", 0)
            recorder.wait(round(1e6 * clocks.host), round(1e6 * clocks.host))
    recorder.close()
    found = read_gradients(folder / "gradients-00000.hvg")
    assert len(found.steps) == steps
    assert found.warning is None
    return found


def timed(found: RankGradients) -> list[int]:
    return [step.number for step in found.steps if step.on_gpu is not None]


@pytest.mark.parametrize("grouped", [False, True])
def test_cheap_events_time_every_step_but_the_first(clocks: Clocks, tmp_path: Path, grouped: bool) -> None:
    found = record(clocks, tmp_path, 12, grouped)
    assert timed(found) == list(range(1, 12))
    for step in found.steps[1:]:
        assert step.on_gpu is not None
        computed = [(1 + index) * TENSOR_MS / 1e3 for index in range(len(NAMES)) for _ in range(1 + grouped)]
        assert step.on_gpu.ready.tolist() == pytest.approx(computed)
        # The last of the waits counts.
        assert step.on_gpu.after == pytest.approx(AFTER_MS / 1e3)
    assert clocks.streams == {"stream of cuda:0"}


def test_a_metric_after_a_step_does_not_count_as_one_of_its_waits(clocks: Clocks, tmp_path: Path) -> None:
    found = record(clocks, tmp_path, 12, metric_every=3)
    assert timed(found) == list(range(1, 12))
    after = [step.on_gpu.after for step in found.steps if step.on_gpu is not None]
    assert after == pytest.approx([AFTER_MS / 1e3] * 11)


def test_events_are_used_again_and_one_marks_all_waits_of_a_step(clocks: Clocks, tmp_path: Path) -> None:
    steps = 40
    record(clocks, tmp_path, steps)
    assert clocks.recorded == steps * (len(NAMES) + 2)
    assert clocks.made <= 4 * len(NAMES) + 2 * steps


@pytest.mark.parametrize(("event_ms", "interval"), [(0.05, 1), (0.2, 4), (90, MOST_INTERVAL)])
def test_steps_that_would_be_slowed_are_timed_in_part(
    clocks: Clocks, tmp_path: Path, event_ms: float, interval: int
) -> None:
    """Five events of a step of 100 ms may take 0.3 ms."""
    clocks.event_ms = event_ms
    found = record(clocks, tmp_path, 8 * MOST_INTERVAL)
    late = [number for number in timed(found) if number > 2 * MOST_INTERVAL]
    assert late == [number for number in range(2 * MOST_INTERVAL + 1, 8 * MOST_INTERVAL) if number % interval == 0]


@pytest.mark.parametrize("event_ms", [0.2, 90])
def test_events_that_complete_a_step_later_count_for_their_own_step(
    clocks: Clocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event_ms: float
) -> None:
    """The GPU takes 40 ms for a step, and the next step asks 10 ms after its end."""
    clocks.event_ms = event_ms
    at_once = timed(record(clocks, tmp_path, 8 * MOST_INTERVAL))
    monkeypatch.setattr(Event, "query", lambda self: self.clocks.gpu > self.at + 40)
    (tmp_path / "late").mkdir()
    late = timed(record(clocks, tmp_path / "late", 8 * MOST_INTERVAL))
    assert [number for number in late if number > 8] == [number for number in at_once if number > 8]


def test_a_short_recording_of_costly_events_has_several_timed_steps(clocks: Clocks, tmp_path: Path) -> None:
    clocks.event_ms = 90
    assert timed(record(clocks, tmp_path, 20)) == [1, 2, 3, 4, 6, 8, 12, 16]


def test_a_program_that_does_not_wait_has_no_times_on_the_gpu(clocks: Clocks, tmp_path: Path) -> None:
    assert not timed(record(clocks, tmp_path, 5, waits=False))


def test_a_driver_s_error_ends_the_times_on_the_gpu_only(
    clocks: Clocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Event, end: Event) -> float:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(Event, "elapsed_time", fail)
    assert not timed(record(clocks, tmp_path, 6))
    assert capfd.readouterr().err.count("times on the GPU are no longer recorded: CUDA error") == 1


def test_other_pytorch_releases_are_asked_for_the_stream(
    clocks: Clocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._C, "_cuda_getCurrentStream", raising=False)
    assert timed(record(clocks, tmp_path, 4)) == [1, 2, 3]
