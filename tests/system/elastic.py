"""Elastic training jobs under real `horovodrun`, and a check of the samples that they used."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from tests.conftest import HANG_SECONDS, PROGRAMS, wait_until

# What horovodrun calls. It spawns a Python process each second, to discover hosts, and each would
# import the file `horovodrun` with all of Horovod's launcher, which takes 0.3 s.
HOROVODRUN = (sys.executable, "-c", "import horovod.runner.launch as launch; launch.run_commandline()")
SAMPLES, BATCH, COMMIT_EVERY = 120, 4, 5
FIRST, SECOND, THIRD, FOURTH = "localhost", "127.0.0.1", "LOCALHOST", "Localhost"
# Each image has one colour, which identifies it in every crop. The buffer counts steps; it is
# committed, restored and broadcast like those of batch normalisation.
LOGGING = """
import json, os, time
import torch
from torch import nn
from hvscale.trainer.tasks.classification import MEAN_RGB, STD_RGB

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, classes))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, images):
        if self.training:
            self.steps += 1
            levels = [(images[:, channel, 0, 0] * STD_RGB[channel] + MEAN_RGB[channel]) * 255 for channel in (0, 1)]
            seen = {"time": time.time(), "step": int(self.steps), "samples": [round(float(level)) for level in levels[1]]}
            with open(f"seen/{os.getpid()}", "a") as log:
                log.write(json.dumps({**seen, "rank": int(os.environ.get("HOROVOD_RANK", 0)), "host": os.environ.get("HOROVOD_HOSTNAME")}) + "\\n")
            time.sleep(0.1)
            rank = os.environ.get("HOROVOD_RANK", 0)
            if os.path.exists(f"nan-once-{rank}"):
                os.remove(f"nan-once-{rank}")
                images = images * float("nan")
            if os.path.exists(f"nan-{rank}"):
                images = images * float("nan")
        return self.layers(images)

def net(num_classes=2):
    return Net(num_classes)
"""
TRAIN = (
    *(
        "hvscale",
        "train",
        "logging_net:net",
        "--data",
        "data",
        "--image-size",
        8,
        "--batch-size",
        BATCH,
        "--run",
        "job",
    ),
    *("--precision", "fp32", "--memory-format", "contiguous", "--threads", 1, "--epochs", 1000),
    *("--commit-every", COMMIT_EVERY),
)


@dataclass
class Job:
    folder: Path
    process: subprocess.Popen[str]

    def hosts(self, *names: str) -> None:
        """Set the hosts that the discovery script prints."""
        new = self.folder / "hosts.new"
        new.write_text("".join(f"{name}:1\n" for name in names))
        new.replace(self.folder / "hosts")

    def steps(self) -> list[dict[str, Any]]:
        file = self.folder / "job/steps.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last line may be incomplete

    def wait_for_ranks(self, count: int, more: int = 3) -> None:
        """Wait until `count` ranks have made the last `more` steps."""

        def steps_completed() -> bool:
            assert self.process.poll() is None, self.log()
            last = self.steps()[-more:]
            return len(last) == more and all(step["images"] == BATCH * count for step in last)

        wait_until(steps_completed)

    def wait_for_epochs(self, count: int) -> None:
        """Wait until `count` more epochs have ended."""

        def epochs_ended() -> int:
            assert self.process.poll() is None, self.log()
            return sum(step["epoch_loss"] is not None for step in self.steps())

        before = epochs_ended()
        wait_until(lambda: epochs_ended() >= before + count)

    def pid(self, rank: int) -> int:
        return max(self.seen(), key=lambda line: (line["rank"] == rank, line["time"]))["pid"]  # type: ignore[no-any-return]

    def host(self, rank: int) -> str:
        return max(self.seen(), key=lambda line: (line["rank"] == rank, line["time"]))["host"]  # type: ignore[no-any-return]

    def seen(self) -> list[dict[str, Any]]:
        files = (self.folder / "seen").iterdir()
        return [
            {**json.loads(line), "pid": int(file.name)}
            for file in files
            for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def log(self) -> str:
        return (self.folder / "out.log").read_text()

    def stop(self) -> None:
        """Ask one rank to save and stop, and wait for all to end."""
        os.kill(self.pid(self.steps()[-1]["images"] // BATCH - 1), signal.SIGUSR1)
        self.process.wait(HANG_SECONDS)
        assert "asked to stop: saved" in self.log(), self.log()

    def ranks_alive(self) -> list[int]:
        found = {line["pid"] for line in self.seen()}
        return [
            process.pid for process in psutil.process_iter() if process.pid in found and is_ours(process, self.folder)
        ]


def is_ours(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder)
    except psutil.Error:
        return False


def write_images(tmp_path: Path) -> None:
    """Write the training images, the model's module and the folder for its log."""
    for number in range(SAMPLES):
        folder = tmp_path / "data/train" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (0, number, 0)).save(folder / f"{number:03}.png")
    (tmp_path / "logging_net.py").write_text(LOGGING)
    (tmp_path / "seen").mkdir()


@contextmanager
def elastic_job(
    tmp_path: Path,
    *options: object,
    train: tuple[object, ...] = TRAIN,
    hosts: tuple[str, str] = (FIRST, SECOND),
    interface: str = "lo",
    within: tuple[str, ...] = (),
) -> Iterator[Job]:
    """Context: a job of two ranks on two hosts, which continues with one rank or more.

    `options` are horovodrun's, `train` is the command, `within` a prefix for horovodrun.
    """
    write_images(tmp_path)
    script = tmp_path / "discover.sh"
    script.write_text(f"#!/bin/sh\ncat '{tmp_path}/hosts'\n")
    script.chmod(0o755)
    (tmp_path / "hosts").write_text("".join(f"{host}:1\n" for host in hosts))
    elastic = ("-np", 2, "--min-np", 1, "--max-np", 3, "--host-discovery-script", script)
    words = (*within, *HOROVODRUN, *elastic, "--network-interface", interface, *options, *train)
    environment = {**os.environ, "PATH": f"{tmp_path}:{PROGRAMS}:{os.environ['PATH']}"}
    with (tmp_path / "out.log").open("w") as log:
        process = subprocess.Popen(
            list(map(str, words)), cwd=tmp_path, env=environment, stdout=log, stderr=log, text=True
        )
    running = Job(tmp_path, process)
    try:
        yield running
    finally:
        process.terminate()  # it ends its ranks
        try:
            process.wait(HANG_SECONDS)
        finally:
            process.kill()
    wait_until(lambda: not running.ranks_alive())


def check_samples(job: Job, repeated_steps: int = 0, times: Sequence[float] = ()) -> None:
    """Check that each epoch used each sample at most once, and left out only an incomplete last
    step.

    Also check that steps.jsonl has each step once, and that at most `repeated_steps` steps of two
    ranks were lost, before each of the times and after the last one.
    """
    steps, seen = job.steps(), sorted(job.seen(), key=lambda line: line["time"])
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    epochs: list[list[int]] = [[]]
    undone = {id(line): line for line in seen}
    joint = images = 0
    for step in steps:
        if len(epochs[-1]) + step["images"] > SAMPLES:
            # Too few samples were left for a step of more ranks, so the epoch ends without it.
            assert step["images"] > images
            epochs.append([])
        images = step["images"]
        # Steps undone by a failure have the same number and an earlier time.
        for line in [line for line in seen if line["step"] == step["step"]][-step["images"] // BATCH :]:
            epochs[-1] += undone.pop(id(line))["samples"]
        joint = max(joint, step["images"])
        if step["epoch_loss"] is not None:
            assert len(epochs[-1]) > SAMPLES - joint, len(epochs)
            epochs.append([])
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(SAMPLES))
    for start, end in pairwise([0, *times, float("inf")]):
        lost = [sample for line in undone.values() if start <= line["time"] < end for sample in line["samples"]]
        assert len(lost) <= repeated_steps * 2 * BATCH
