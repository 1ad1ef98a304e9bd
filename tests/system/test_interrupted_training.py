"""Interrupted training: signals, NaN losses, stalled ranks, kills and a full disk."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from hvscale.trainer.checkpoints.store import read
from hvscale.trainer.system.step_watchdog import STACK_DUMP_SECONDS
from tests.conftest import HANG_SECONDS, PROGRAMS, Run, run_json, suspend, wait_until
from tests.system.test_resume import EDSR, kill_warm_after, same, steps

# On rank 1 the outputs are NaN in the training steps in NAN_STEPS, counted from 0.
NAN_OUTPUTS = """
import os
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, classes))
        self.calls = 0

    def forward(self, images):
        here = os.environ.get("OMPI_COMM_WORLD_RANK", "1") == "1"
        broken = here and str(self.calls) in os.environ["NAN_STEPS"].split(",")
        self.calls += 1
        return self.layers(images * float("nan") if broken else images)

def net(num_classes=5):
    return Net(num_classes)
"""
# On rank 1 the third step raises an error.
RAISES = """
import os
from torch import nn

class Net(nn.Linear):
    calls = 0

    def forward(self, images):
        self.calls += 1
        if self.calls == 3 and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            raise KeyError("a fault of this model")
        return super().forward(images.mean((2, 3)))

def net(num_classes=5):
    return Net(3, num_classes)
"""
# The third step does not end.
HANGS = """
import time
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, classes))
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        if self.calls == 3:
            time.sleep(1200)
        return self.layers(images)

def net(num_classes=5):
    return Net(num_classes)
"""
# Steps take 50 ms more while there is a file `slow`, so that training does not end before a signal.
SLOW_STEPS = """
import os, time
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, classes))

    def forward(self, images):
        if self.training and os.path.exists("slow"):
            time.sleep(0.05)
        return self.layers(images)

def net(num_classes=5):
    return Net(num_classes)
"""
# Writes `building` or `evaluating` and waits for `after_building` or `after_evaluating` there.
WAITS = """
import threading, time
from pathlib import Path
from torch import nn

def wait(name):
    Path(name).touch()
    while not Path(f"after_{name}").exists():
        time.sleep(0.01)

class Net(nn.Linear):
    def forward(self, images):
        if self.training:  # as one that still loads a batch when training has ended
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        else:
            wait("evaluating")
        return super().forward(images.mean((2, 3)))

def net(num_classes=5):
    wait("building")
    return Net(3, num_classes)
"""
CLASSIFIER = (
    *("train", "broken:net", "--data", "synthetic", "--num-classes", 5, "--image-size", 8, "--batch-size", 4),
    *("--precision", "fp32", "--memory-format", "contiguous", "--threads", 1, "--checkpoint-every", 2),
)
# 64 MB of parameters and 64 MB of momentum, so that writing a checkpoint takes long enough.
LARGE_MODEL = """
from torch import nn
def net(num_classes=5):
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 4000), nn.Linear(4000, 4000), nn.Linear(4000, num_classes))
"""


def start(tmp_path: Path, *words: object) -> subprocess.Popen[str]:
    command = [str(PROGRAMS / "hvscale"), *map(str, words)]
    return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_and_signal(
    tmp_path: Path,
    words: tuple[object, ...],
    send_signal: Callable[[subprocess.Popen[str]], None],
    run: str = "stopped",
) -> tuple[int, str]:
    """Start `hvscale ...` with this run folder, and call `send_signal` after ten steps.

    Return the exit status and the output.
    """
    file = tmp_path / run / "steps.jsonl"
    with start(tmp_path, *words) as process:
        try:
            wait_until(lambda: file.exists() and len(file.read_text().splitlines()) >= 10)
            send_signal(process)
            output, _ = process.communicate(timeout=HANG_SECONDS)
        finally:
            process.kill()
    return process.returncode, output


def equal(one: Any, other: Any) -> bool:
    """Whether tensors, or lists or dicts of them, are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def slow_training(folder: Path) -> tuple[object, ...]:
    """Write SLOW_STEPS and `slow` to the folder; return the words of `hvscale train`."""
    (folder / "slowed.py").write_text(SLOW_STEPS)
    (folder / "slow").touch()
    return ("train", "slowed:net", *CLASSIFIER[2:], "--checkpoint-every", 0)


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_a_checkpoint_and_exits_with_75(tmp_path: Path, number: int) -> None:
    again = (*EDSR, "--steps", 10**6, "--run", "stopped", "--resume", "auto", "--checkpoint-every", 0)
    status, output = run_and_signal(tmp_path, again, lambda process: process.send_signal(number))
    assert status == 75, output
    assert output.splitlines()[-1].startswith("hvscale: asked to stop: saved ")
    record = run_json(tmp_path / "stopped")
    assert (record["state"], record["exit_status"]) == ("interrupted", 75)
    last_step = steps(tmp_path / "stopped")[-1][0]
    assert (tmp_path / f"stopped/checkpoints/step-{last_step:09d}.ckpt").is_file()


def test_sigusr1_waits_for_the_first_step_and_does_not_end_the_evaluation(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    for folder in ("train/red", "train/blue", "val/red", "val/blue"):
        (tmp_path / "images" / folder).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8), Path(folder).name).save(tmp_path / "images" / folder / f"{number}.png")
    options = (*CLASSIFIER[CLASSIFIER.index("--image-size") :], "--steps", 2, "--checkpoint-dir", "kept")
    train = ("train", "waits:net", "--data", "images", *options, "--resume", "auto")

    def signalled_at(place: str) -> tuple[int, str]:
        with start(tmp_path, *train) as process:
            try:
                wait_until((tmp_path / place).exists)
                process.send_signal(signal.SIGUSR1)
                (tmp_path / f"after_{place}").touch()
                output, _ = process.communicate(timeout=HANG_SECONDS)
            finally:
                process.kill()
        return process.returncode, output

    status, output = signalled_at("building")
    assert (status, "after step 1; resume" in output) == (75, True), output
    status, output = signalled_at("evaluating")
    assert (status, "model.pt" in output) == (0, True), output


def test_all_ranks_stop_when_one_or_the_launcher_is_signalled_and_resume(hvscale: Run, tmp_path: Path) -> None:
    train: tuple[object, ...] = ("hvscale", *EDSR, "--schedule", "constant", "--checkpoint-every", 0)
    kept = ("--checkpoint-dir", "kept", "--resume", "auto")
    signalled = ("rank 1", "the launcher")
    for to in signalled:

        def send(process: subprocess.Popen[str], to: str = to) -> None:
            if to == "the launcher":
                process.send_signal(signal.SIGUSR1)
            else:
                os.kill(json.loads((tmp_path / to / "ranks/rank-00001.json").read_text())["pid"], signal.SIGTERM)

        words = ("launch", "-np", 2, "--run", to, "--", *train, "--steps", 10**6, *kept)
        status, output = run_and_signal(tmp_path, words, send, run=to)
        assert status == 75, output
        assert output.count("asked to stop: saved") >= 1
        record = run_json(tmp_path / to)
        assert (record["state"], record["exit_status"]) == ("interrupted", 75)
        assert record["ranks"][0]["exit_status"] == 75
    last_step = steps(tmp_path / to)[-1][0]
    train = (*train, "--steps", last_step + 3)
    assert hvscale("launch", "-np", 2, "--run", "rest", "--", *train, *kept).returncode == 0
    assert hvscale("launch", "-np", 2, "--run", "whole", "--", *train).returncode == 0
    assert same(tmp_path / "whole", tmp_path / "rest")
    assert steps(tmp_path / "whole") == [line for run in (*signalled, "rest") for line in steps(tmp_path / run)]


def test_nans_on_one_rank_are_skipped_by_all_and_three_in_a_row_stop_them(hvscale: Run, tmp_path: Path) -> None:
    """Two consecutive NaNs on rank 1 do not change parameters, optimizer or batch-normalisation
    buffers.
    """
    (tmp_path / "broken.py").write_text(NAN_OUTPUTS)
    launch = ("launch", "-np", 2, "--env", "NAN_STEPS=2,3,6,7,8", "--run", "job", "--", "hvscale", *CLASSIFIER)
    done = hvscale(*launch, "--steps", 12, "--optimizer", "adam", "--checkpoint-keep", 100)
    assert done.returncode == 3, done.stdout + done.stderr
    skipped = [line["skipped"] for line in lines_of(tmp_path / "job")]
    assert skipped == [False] * 2 + [True] * 2 + [False] * 2 + [True] * 3
    assert done.stdout.count("is skipped: the loss or a gradient is not finite") == 4
    two, four, six = (read(tmp_path / f"job/checkpoints/step-{step:09d}.ckpt") for step in (2, 4, 6))
    assert equal(two.model, four.model)
    assert equal(two.optimizer, four.optimizer)
    assert not equal(four.model, six.model)
    assert all(value.isfinite().all() for value in six.model.values())
    assert done.stdout.count("the last good checkpoint is") == 1


def test_three_consecutive_nans_stop_training_and_name_the_last_good_checkpoint(
    hvscale_warm: Run, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(NAN_OUTPUTS)
    train = (*CLASSIFIER, "--steps", 9, "--run", "job")
    done = hvscale_warm(*train, NAN_STEPS="4,5,6,7,8")
    assert done.returncode == 2
    assert "not finite in 3 steps in a row, up to step 7: lower --learning-rate" in done.stderr
    named = Path(done.stderr.split("the last good checkpoint is ")[1].strip())
    assert named.name == "step-000000006.ckpt"
    assert "Traceback" not in done.stderr
    done = hvscale_warm(*train, "--resume", named, NAN_STEPS="")
    assert done.returncode == 0, done.stderr
    done = hvscale_warm(*CLASSIFIER, "--steps", 9, "--checkpoint-every", 0, "--run", "two", NAN_STEPS="1,2,3")
    assert done.returncode == 2
    assert done.stderr.count("there is no checkpoint yet") == 1


def test_a_rank_s_own_error_is_reported_and_not_the_end_of_the_others(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(RAISES)
    done = hvscale("launch", "-np", 2, "--run", "job", "--", "hvscale", *CLASSIFIER, "--steps", 9)
    assert done.returncode == 3
    assert "hvscale: rank 1 on " in done.stderr
    assert done.stderr.endswith("KeyError: 'a fault of this model'\n")


def test_a_stalled_rank_ends_the_job_and_all_stacks_are_logged(tmp_path: Path) -> None:
    words = ("hvscale", *EDSR, "--steps", 100000, "--stall-timeout", 4)
    pid = 0

    def stop(process: subprocess.Popen[str]) -> None:
        nonlocal pid
        pid = json.loads((tmp_path / "stopped/ranks/rank-00001.json").read_text())["pid"]
        os.kill(pid, signal.SIGSTOP)

    status, output = run_and_signal(tmp_path, ("launch", "-np", 2, "--run", "stopped", "--", *words), stop)
    assert status == 3, output
    for rank in range(2):
        log = (tmp_path / f"stopped/logs/rank-{rank:05d}.log").read_text()
        why = ("no step finished for 4 s", "this process was suspended for")[rank]
        assert f"hvscale: {why}" in log, (rank, log[-500:])
        assert "hvscale/trainer/trainer.py" in log, (rank, log[-500:])
    assert "no step finished for" in output
    assert not Path(f"/proc/{pid}").exists()


def test_a_stalled_process_exits_even_if_its_output_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(HANGS)
    train = ("train", "stuck:net", *CLASSIFIER[2:-2], "--steps", 9, "--stall-timeout", 1, "--run", "job")
    file = tmp_path / "job/steps.jsonl"
    with start(tmp_path, *train) as process:
        try:
            wait_until(lambda: file.exists() and len(file.read_text().splitlines()) == 2)
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(timeout=HANG_SECONDS) == 3
        finally:
            process.kill()


def test_a_job_suspended_beyond_the_step_timeout_continues(tmp_path: Path) -> None:
    words = ("hvscale", *slow_training(tmp_path), "--steps", 300, "--stall-timeout", 4)

    def suspend_and_resume(process: subprocess.Popen[str]) -> None:
        pids = [json.loads(file.read_text())["pid"] for file in (tmp_path / "stopped/ranks").glob("rank-*.json")]
        assert len(pids) == 2
        for number, seconds in ((signal.SIGSTOP, 2 + STACK_DUMP_SECONDS + 2), (signal.SIGCONT, 0)):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(seconds)
        (tmp_path / "slow").unlink()

    status, output = run_and_signal(
        tmp_path, ("launch", "-np", 2, "--run", "stopped", "--", *words), suspend_and_resume
    )
    assert status == 0, output
    assert len(steps(tmp_path / "stopped")) == 300
    for rank in range(2):
        log = (tmp_path / f"stopped/logs/rank-{rank:05d}.log").read_text()
        assert "this process was suspended for" in log, (rank, log[-500:])
        assert "hvscale/trainer/trainer.py" in log, (rank, log[-500:])


def test_twelve_random_kills_do_not_change_the_result(hvscale: Run, hvscale_warm: Run, tmp_path: Path) -> None:
    assert hvscale_warm(*EDSR, "--steps", 240, "--run", "whole").returncode == 0
    again = (*EDSR, "--steps", 240, "--run", "stopped", "--resume", "auto")
    generator = random.Random(7)  # noqa: S311
    for kill in range(12):
        kill_warm_after(tmp_path, 15 * kill + generator.randint(1, 15), *again)
    done = hvscale(*again)
    assert done.returncode == 0, done.stderr
    assert same(tmp_path / "whole", tmp_path / "stopped")
    assert steps(tmp_path / "whole") == steps(tmp_path / "stopped")


def test_a_kill_during_a_checkpoint_keeps_the_previous_one(hvscale_warm: Run, tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE_MODEL)
    train = ("train", "large:net", *CLASSIFIER[2:], "--run", "job", "--resume", "auto", "--steps")
    assert hvscale_warm(*train, 2).returncode == 0
    folder = tmp_path / "job/checkpoints"

    def unfinished() -> list[str]:
        return [file.name for file in folder.glob(".step-*")]

    with start(tmp_path, *train, 200) as process:
        found: list[str] = []
        while not found:  # on a busy machine the checkpoint may be complete before the process stops
            process.send_signal(signal.SIGCONT)
            wait_until(lambda: bool(unfinished()))
            suspend(process.pid)
            found = unfinished()
        process.kill()
    [interrupted] = [int(name.split(".")[1].removeprefix("step-")) for name in found]
    kept = [f"step-{step:09d}.ckpt" for step in range(2, interrupted, 2)][-3:]
    assert {file.name for file in folder.iterdir()} == {*kept, *found}
    done = hvscale_warm(*train, interrupted + 2)
    assert done.returncode == 0, done.stderr
    assert f"resuming after step {interrupted - 2}" in done.stderr
    last = [f"step-{step:09d}.ckpt" for step in range(2, interrupted + 4, 2)][-3:]
    assert {file.name for file in folder.iterdir()} == set(last)


def test_a_full_disk_keeps_existing_checkpoints(
    hvscale: Run, hvscale_warm: Run, small_disk: Callable[..., Path], tmp_path: Path
) -> None:
    small = small_disk("500k")
    train = (*EDSR, "--checkpoint-dir", small, "--checkpoint-keep", 100, "--resume", "auto", "--steps", 200)
    done = hvscale(*train)
    assert done.returncode == 2, done.stderr
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"hvscale: cannot write the checkpoint {small}/step-"), done.stderr
    assert message.endswith(": No space left on device. Choose another folder with --checkpoint-dir, or make room")
    assert "Traceback" not in done.stderr
    assert not list(small.glob(".*"))
    newest = max(int(file.stem.split("-")[1]) for file in small.iterdir())
    subprocess.run(["mount", "-o", "remount,size=100m", small], check=True)
    done = hvscale_warm(*train)
    assert done.returncode == 0, done.stderr
    assert f"resuming after step {newest}" in done.stderr
    assert hvscale_warm(*EDSR, "--steps", 200, "--run", "whole").returncode == 0
    last = max(tmp_path.glob("runs/*"))
    assert same(tmp_path / "whole", last)
