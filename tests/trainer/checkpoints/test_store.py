"""Checkpoint files: damage is detected, the newest are kept, and no incomplete file is left."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hvscale.core.errors import RequestError
from hvscale.trainer.checkpoints.store import Checkpoint, CheckpointFolder, DamagedError, read, write
from hvscale.trainer.checkpoints.trained_model import read_weights


def checkpoint(step: int = 5, size: int = 1000) -> Checkpoint:
    return Checkpoint(
        step=step,
        steps=10,
        model={"weight": torch.arange(float(size)), "count": torch.tensor(step)},
        model_options={"scale": 2},
        optimizer={"state": {0: {"step": torch.tensor(5.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        random=[{"cpu": torch.get_rng_state()}],
        scaler={},
        compute_format={"precision": "fp32", "channels_last": True},
        config={"model": "edsr", "run": None},
    )


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def damage(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "a bit flipped":
        content[len(content) // 2] ^= 1
    elif how == "truncated":
        del content[-100:]
    elif how == "empty":
        content.clear()
    elif how == "extra bytes":
        content += b"more"
    elif how == "another header":
        content[:7] = b"garbage"
    file.write_bytes(content)


DAMAGE = {
    "a bit flipped": "its checksum is wrong",
    "truncated": r"it has \d+ of \d+ bytes",
    "empty": "its first line is not that of a checkpoint",
    "extra bytes": r"it has \d+ of \d+ bytes",
    "another header": "its first line is not that of a checkpoint",
}


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    written = checkpoint()
    found = read(CheckpointFolder(tmp_path, 3).save(written))
    assert torch.equal(found.model["weight"], written.model["weight"])
    assert torch.equal(found.random[0]["cpu"], written.random[0]["cpu"])
    assert (found.step, found.steps, found.optimizer) == (5, 10, written.optimizer)
    assert (found.compute_format, found.config, found.model_options) == (
        written.compute_format,
        written.config,
        written.model_options,
    )


def test_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, 2)
    for step in (5, 10, 15, 100):
        folder.save(checkpoint(step))
    assert [file.name for file in folder.files()] == ["step-000000100.ckpt", "step-000000015.ckpt"]
    assert names(tmp_path) == ["step-000000015.ckpt", "step-000000100.ckpt"]


def test_checkpoints_after_the_one_resumed_from_are_replaced(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, 3)
    for step in (4, 8, 12):
        folder.save(checkpoint(step))
    CheckpointFolder(tmp_path, 1).save(checkpoint(6))
    assert names(tmp_path) == ["step-000000006.ckpt"]


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_checkpoint_is_reported_and_the_previous_one_used(tmp_path: Path, how: str) -> None:
    folder = CheckpointFolder(tmp_path, 3)
    folder.save(checkpoint(5))
    damage(folder.save(checkpoint(10)), how)
    warnings: list[str] = []
    found = folder.newest(warnings.append)
    assert found is not None
    assert found[1].step == 5
    assert len(warnings) == 1
    assert "step-000000010.ckpt is damaged" in warnings[0]
    with pytest.raises(DamagedError, match=DAMAGE[how]):
        read(tmp_path / "step-000000010.ckpt")


@pytest.mark.parametrize("changed", [{"average": {}}, {"steps": Path("a path")}], ids=["another field", "another type"])
def test_a_whole_checkpoint_of_another_kind_is_one_line(tmp_path: Path, changed: dict[str, Any]) -> None:
    other = checkpoint()
    vars(other).update(changed)
    file = tmp_path / "other.ckpt"
    with file.open("wb") as stream:
        write(other, stream)
    with pytest.raises(RequestError, match=r"other\.ckpt is not a checkpoint that this hvscale reads: use the hvscale"):
        read(file)


def test_no_checkpoints_and_only_damaged_ones(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "none", 3).newest(print) is None
    damage(CheckpointFolder(tmp_path, 3).save(checkpoint()), "truncated")
    with pytest.raises(RequestError, match=r"all checkpoints in .* are damaged"):
        CheckpointFolder(tmp_path, 3).newest(lambda _: None)


# A forked process for each folder that it reads, so that PyTorch is loaded once.
WRITER = """
import os, sys
from pathlib import Path
from hvscale.trainer.checkpoints.store import CheckpointFolder
from tests.trainer.checkpoints.test_store import checkpoint
for line in sys.stdin:
    if os.fork():
        os.wait()
        print("ended", flush=True)
        continue
    print(os.getpid(), flush=True)
    step = 0
    while True:
        step += 1
        CheckpointFolder(Path(line.strip()), 2).save(checkpoint(step, 4_000_000))
        print(step, flush=True)
"""


@pytest.mark.ranks
def test_kill_during_a_write_loses_no_checkpoint(tmp_path: Path) -> None:
    """Killed at various times while 16 MB are written, all named checkpoints stay intact."""
    killed_during_write = 0
    delays = (0.0, 0.003, 0.007, 0.011, 0.017, 0.023)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as forks:
        last_printed = [kill_during_a_write(forks, tmp_path / str(delay), delay) for delay in delays]
        forks.communicate()
    for delay, last in zip(delays, last_printed, strict=True):
        folder = tmp_path / str(delay)
        kept = CheckpointFolder(folder, 2)
        steps = [read(file).step for file in kept.files()]
        assert steps[0] >= last
        killed_during_write += any(name.startswith(".") for name in names(folder))
        kept.save(checkpoint(1000))
        assert not any(name.startswith(".") for name in names(folder))
    assert killed_during_write


def kill_during_a_write(forks: "subprocess.Popen[str]", folder: Path, delay: float) -> int:
    """Let a process write checkpoints until it is killed; return the last step known as written."""
    assert forks.stdin is not None
    assert forks.stdout is not None
    print(folder, file=forks.stdin, flush=True)
    pid = int(forks.stdout.readline())
    try:
        last = int([forks.stdout.readline() for _ in range(3)][-1])
        while not any(name.startswith(".") for name in names(folder)):
            pass
        time.sleep(delay)
    finally:
        os.kill(pid, signal.SIGKILL)
    while forks.stdout.readline() != "ended\n":
        pass
    return last


def test_full_disk_keeps_existing_checkpoints(small_disk: Callable[..., Path]) -> None:
    small = small_disk("400k")
    folder = CheckpointFolder(small / "checkpoints", 3)
    folder.save(checkpoint(5))
    with pytest.raises(RequestError, match="No space left"):
        folder.save(checkpoint(10, 200_000))
    assert names(small / "checkpoints") == ["step-000000005.ckpt"]
    assert read(folder.files()[0]).step == 5


def test_a_run_folder_that_may_not_be_read_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(RequestError, match=rf"^{tmp_path} cannot be read: Permission denied$"):
        read_weights(tmp_path)
