"""Elastic training under real `horovodrun`: killed ranks, added and removed hosts, and samples
used.

Horovod removes a host with all its ranks when one dies, so this machine appears as several hosts
under several names. In the last tests each host is a network namespace with its own ssh server.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from tests.conftest import PROGRAMS, Run, run_json, wait_until
from tests.system.services import SshHosts, output

SAMPLES, BATCH, COMMIT_EVERY = 120, 4, 5
FIRST, SECOND, THIRD = "localhost", "127.0.0.1", "LOCALHOST"
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
        self.process.wait(60)
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


@pytest.fixture
def images(tmp_path: Path) -> None:
    for number in range(SAMPLES):
        folder = tmp_path / "data/train" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (0, number, 0)).save(folder / f"{number:03}.png")
    (tmp_path / "logging_net.py").write_text(LOGGING)
    (tmp_path / "seen").mkdir()


@pytest.fixture
def job(tmp_path: Path, images: None) -> Callable[..., Any]:
    """`with job("--blacklist-cooldown-range", 1, 2) as running:` starts two ranks on two hosts.

    The job continues with one rank or more. `train` is the command, `within` a prefix for
    horovodrun.
    """

    @contextmanager
    def started(
        *options: object,
        train: tuple[object, ...] = TRAIN,
        hosts: tuple[str, str] = (FIRST, SECOND),
        interface: str = "lo",
        within: tuple[str, ...] = (),
    ) -> Iterator[Job]:
        script = tmp_path / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat '{tmp_path}/hosts'\n")
        script.chmod(0o755)
        (tmp_path / "hosts").write_text("".join(f"{host}:1\n" for host in hosts))
        elastic = ("-np", 2, "--min-np", 1, "--max-np", 3, "--host-discovery-script", script)
        words = (*within, PROGRAMS / "horovodrun", *elastic, "--network-interface", interface, *options, *train)
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
                process.wait(30)
            finally:
                process.kill()
        wait_until(lambda: not running.ranks_alive(), 10)

    return started


def check_samples(job: Job, repeated_steps: int = 0) -> None:
    """Check that each epoch used each sample at most once, and left out only an incomplete last
    step.

    Also check that steps.jsonl has each step once, and that at most `repeated_steps` steps of two
    ranks were lost.
    """
    steps, seen = job.steps(), sorted(job.seen(), key=lambda line: line["time"])
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    epochs: list[list[int]] = [[]]
    joint = images = 0
    for step in steps:
        if len(epochs[-1]) + step["images"] > SAMPLES:
            # Too few samples were left for a step of more ranks, so the epoch ends without it.
            assert step["images"] > images
            epochs.append([])
        images = step["images"]
        # Steps undone by a failure have the same number and an earlier time.
        own = [line["samples"] for line in seen if line["step"] == step["step"]][-step["images"] // BATCH :]
        epochs[-1] += [sample for samples in own for sample in samples]
        joint = max(joint, step["images"])
        if step["epoch_loss"] is not None:
            assert len(epochs[-1]) > SAMPLES - joint, len(epochs)
            epochs.append([])
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(SAMPLES))
    lost = sum(len(line["samples"]) for line in seen) - sum(map(len, epochs))
    assert lost <= repeated_steps * 2 * BATCH


@pytest.mark.parametrize("rank", [0, 1])
def test_job_continues_without_a_killed_rank_until_it_is_replaced(job: Callable[..., Any], rank: int) -> None:
    with job("--blacklist-cooldown-range", 1, 2) as running:
        running.wait_for_ranks(2, more=COMMIT_EVERY + 2)
        os.kill(running.pid(rank), signal.SIGKILL)
        running.wait_for_ranks(1)
        running.wait_for_ranks(2)
        running.wait_for_epochs(1)
        running.stop()
        log = running.log()
        assert "np is 1, it was 2: a step takes 4 images, not 8; the learning rate is not scaled by ranks" in log
        assert "np is 2, it was 1: a step takes 8 images, not 4" in log
        check_samples(running, COMMIT_EVERY)
        record = run_json(running.folder / "job")
        assert (record["state"], record["exit_status"], record["np"]) == ("interrupted", 75, 2)
        last_step = running.steps()[-1]["step"]
        assert (running.folder / f"job/checkpoints/step-{last_step:09d}.ckpt").is_file()


def test_nan_loss_after_a_change_of_ranks_is_handled_by_all_ranks(job: Callable[..., Any]) -> None:
    with job() as running:
        running.wait_for_ranks(2)
        running.hosts(FIRST, SECOND, THIRD)
        running.wait_for_ranks(3)
        (running.folder / "nan-once-1").touch()
        wait_until(lambda: any(step["skipped"] for step in running.steps()))
        before = len(running.steps())
        wait_until(lambda: len(running.steps()) > before + 4)
        assert sum(step["skipped"] for step in running.steps()) == 1
        (running.folder / "nan-2").touch()
        assert running.process.wait(60) != 0
        last = running.steps()[-3:]
        assert [step["skipped"] for step in last] == [True] * 3
        last_step = last[-1]["step"]
        assert f"the loss or a gradient is not finite in 3 steps in a row, up to step {last_step}" in running.log()
        assert running.log().count("the ranks regroup") == 1
        assert run_json(running.folder / "job")["state"] == "failed"


def test_adding_and_removing_hosts_loses_no_step(job: Callable[..., Any]) -> None:
    """Rank 0's host is removed: another rank then writes the run folder."""
    with job() as running:
        running.wait_for_ranks(2)
        running.hosts(FIRST, SECOND, THIRD)
        running.wait_for_ranks(3)
        running.hosts(*{FIRST, SECOND, THIRD} - {running.host(0)})
        running.wait_for_ranks(2)
        running.wait_for_epochs(1)
        running.stop()
        assert "this host was removed from the job" in running.log()
        check_samples(running)


@pytest.mark.parametrize("how", ["exit 1", "set -- --data nowhere"])
def test_new_rank_that_cannot_start_does_not_end_the_others(job: Callable[..., Any], how: str) -> None:
    script = f'if [ "$HOROVOD_HOSTNAME" = {THIRD} ]; then {how}; fi; exec "$0" "$@"'
    train = ("sh", "-c", script.replace("set --", 'set -- "$@"'), *TRAIN)
    with job(train=train) as running:
        running.wait_for_ranks(2)
        running.hosts(FIRST, SECOND, THIRD)
        wait_until(lambda: "the ranks regroup" in running.log())
        before = len(running.steps())
        wait_until(lambda: len(running.steps()) >= before + 3)
        running.wait_for_ranks(2)
        running.stop()
        assert ("--data nowhere: no such folder" in running.log()) == ("nowhere" in how)
        check_samples(running)


def test_another_number_of_ranks_resumes_in_the_same_epoch(hvscale: Run, tmp_path: Path, images: None) -> None:
    """Without elastic training: one rank uses 80 of 120 samples, then two ranks the other 40."""
    train = (*TRAIN[:-4], "--checkpoint-every", 20, "--checkpoint-dir", "kept", "--resume", "auto")
    assert hvscale(*train[1:], "--steps", 20).returncode == 0
    done = hvscale("launch", "-np", 2, "--run", "rest", "--", *train, "--steps", 45)
    assert done.returncode == 0, done.stdout
    seen = [json.loads(line) for file in (tmp_path / "seen").iterdir() for line in file.read_text().splitlines()]
    by_epoch = [
        [sample for line in seen if first <= line["step"] <= last for sample in line["samples"]]
        for first, last in ((1, 25), (26, 40))
    ]
    assert [sorted(samples) for samples in by_epoch] == [list(range(SAMPLES))] * 2
    epochs = [
        line["step"]
        for line in map(json.loads, (tmp_path / "job/steps.jsonl").read_text().splitlines())
        if line["epoch_loss"]
    ]
    assert epochs == [25, 40]


@pytest.fixture
def ssh_job(job: Callable[..., Any], ssh: SshHosts, tmp_path: Path) -> Callable[..., Any]:
    """Start a rank on each of `alpha` and `beta`; horovodrun uses ssh from a third host."""
    wrapper = tmp_path / "ssh"  # horovodrun has no option for ssh's configuration, but calls it by name
    _, *options = ssh.ssh.split()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {" ".join(options)} -o ServerAliveInterval=2 "$@"\n')
    wrapper.chmod(0o755)
    return partial(
        job,
        hosts=(ssh.addresses["alpha"], ssh.addresses["beta"]),
        interface="eth0",
        within=("ip", "netns", "exec", ssh.namespaces["bare"]),
    )


def test_rank_killed_on_another_host_is_replaced(ssh_job: Callable[..., Any]) -> None:
    with ssh_job("--blacklist-cooldown-range", 1, 2) as running:
        running.wait_for_ranks(2, more=COMMIT_EVERY + 2)
        os.kill(running.pid(0), signal.SIGKILL)
        running.wait_for_ranks(1)
        running.wait_for_ranks(2)
        running.wait_for_epochs(1)
        running.stop()
        check_samples(running, COMMIT_EVERY)


def test_job_continues_without_a_disconnected_host_until_it_returns(
    ssh_job: Callable[..., Any], ssh: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "5")
    alpha, beta = ssh.addresses["alpha"], ssh.addresses["beta"]
    link = ("ip", "-n", ssh.namespaces["beta"], "link", "set", "eth0")
    with ssh_job("--blacklist-cooldown-range", 1, 2) as running:
        running.wait_for_ranks(2, more=COMMIT_EVERY + 2)
        output(*link, "down")
        try:
            running.hosts(alpha)
            running.wait_for_ranks(1)
        finally:
            output(*link, "up")
        running.hosts(alpha, beta)
        running.wait_for_ranks(2)
        running.wait_for_epochs(1)
        running.stop()
        check_samples(running, COMMIT_EVERY)
