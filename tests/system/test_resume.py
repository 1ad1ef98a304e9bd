"""Resumed training gives, on a CPU, the result of training that was never interrupted."""

import json
import os
import shutil
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hvscale.core.folder_lock import FolderLock
from hvscale.trainer.checkpoints.store import read
from hvscale.trainer.checkpoints.trained_model import read_weights
from tests import preloaded
from tests.conftest import HANG_SECONDS, PROGRAMS, Run, kill_below, processes_below, wait_until

EDSR = (
    *("train", "edsr-baseline", "--n-resblocks", 1, "--n-feats", 8, "--batch-size", 2, "--patch-size", 16),
    *("--precision", "fp32", "--memory-format", "contiguous", "--threads", 1),
    *("--schedule", "cosine", "--warmup-steps", 3, "--checkpoint-every", 4),
)
# Dropout draws random numbers in every step, so each rank must resume its random state.
DROPOUT = """
from torch import nn
def net(num_classes=5):
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 32), nn.Dropout(0.5), nn.Linear(32, num_classes))
"""
# A count of the batches, which it keeps as any object or as plain values.
COUNTING = """
from fractions import Fraction
from torch import nn
class Counting(nn.Conv2d):
    seen = 0
    def forward(self, images):
        self.seen += self.training
        return super().forward(images / 255) * 255
    def get_extra_state(self):
        return {"seen": Fraction(self.seen) if self.bias is None else self.seen}
    def set_extra_state(self, state):
        self.seen = state["seen"]
def net(scale=2):
    return nn.Sequential(Counting(3, 12, 3, padding=1), nn.PixelShuffle(2))
def of_objects(scale=2):
    return nn.Sequential(Counting(3, 12, 3, padding=1, bias=False), nn.PixelShuffle(2))
"""
CLASSIFIER = (
    *("train", "dropping:net", "--data", "synthetic", "--num-classes", 5, "--image-size", 8, "--batch-size", 2),
    *("--precision", "fp32", "--memory-format", "contiguous", "--threads", 1, "--checkpoint-every", 4),
)


def model(run: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(run / "model.pt", weights_only=True)
    return found


def same(one: Path, other: Path) -> bool:
    a, b = model(one), model(other)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def steps(run: Path) -> list[tuple[Any, ...]]:
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["learning_rate"], line["images"]) for line in lines]


def has_steps(tmp_path: Path, count: int) -> bool:
    """Return whether stopped/steps.jsonl has `count` lines."""
    file = tmp_path / "stopped/steps.jsonl"
    return file.exists() and len(file.read_text().splitlines()) >= count


def kill_after(tmp_path: Path, count: int, *words: object) -> None:
    """Start `hvscale ...` and SIGKILL it when stopped/steps.jsonl has `count` lines."""
    with subprocess.Popen([PROGRAMS / "hvscale", *map(str, words)], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: has_steps(tmp_path, count))
        process.send_signal(signal.SIGKILL)


def kill_warm_after(tmp_path: Path, count: int, *words: object) -> None:
    """As `kill_after`, in a forked process that has torch loaded."""
    process = preloaded.start([*map(str, words)], tmp_path, dict(os.environ), tmp_path)
    wait_until(lambda: has_steps(tmp_path, count))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_killed_and_resumed_training_is_bit_identical(hvscale: Run, hvscale_warm: Run, tmp_path: Path) -> None:
    assert hvscale_warm(*EDSR, "--steps", 60, "--run", "whole").returncode == 0
    again = (*EDSR, "--steps", 60, "--run", "stopped", "--resume", "auto")
    kill_after(tmp_path, 14, *again)
    done = hvscale(*again)
    assert done.returncode == 0, done.stderr
    assert "resuming after step" in done.stderr
    assert same(tmp_path / "whole", tmp_path / "stopped")
    assert steps(tmp_path / "whole") == steps(tmp_path / "stopped")
    assert json.loads((tmp_path / "stopped/run.json").read_text())["state"] == "finished"
    assert len(list((tmp_path / "stopped/checkpoints").iterdir())) == 3


def test_two_half_runs_equal_one_full_run(hvscale_warm: Run, tmp_path: Path) -> None:
    """With dropout, and a constant learning rate, which does not depend on the number of steps."""
    (tmp_path / "dropping.py").write_text(DROPOUT)
    assert hvscale_warm(*CLASSIFIER, "--steps", 8, "--run", "whole").returncode == 0
    assert hvscale_warm(*CLASSIFIER, "--steps", 4, "--run", "first").returncode == 0
    done = hvscale_warm(*CLASSIFIER, "--steps", 8, "--run", "second", "--resume", "first")
    assert done.returncode == 0, done.stderr
    assert same(tmp_path / "whole", tmp_path / "second")
    assert steps(tmp_path / "whole") == [*steps(tmp_path / "first"), *steps(tmp_path / "second")]
    assert "warning" not in done.stderr


def test_a_checkpoint_folder_in_use_is_refused(hvscale_warm: Run, tmp_path: Path) -> None:
    """Each training would remove the checkpoints of the other."""
    words = (*EDSR, "--data", "synthetic", "--steps", 8, "--checkpoint-dir", "kept", "--resume", "auto")
    with closing(FolderLock(tmp_path / "kept")):
        done = hvscale_warm(*words, "--run", "second")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("hvscale: kept is in use by process ")
    assert line.endswith(": choose another folder with --checkpoint-dir, or wait until it ends")
    assert not (tmp_path / "second").exists()
    assert hvscale_warm(*words, "--run", "second").returncode == 0
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-000000004.ckpt", "step-000000008.ckpt"]


def two_ranks(run: str, count: int, *more: object) -> tuple[object, ...]:
    """Return the words that train the model with dropout on two ranks."""
    return ("launch", "-np", 2, "--run", run, "--", "hvscale", *CLASSIFIER, "--steps", count, *more)


def test_two_ranks_resume_bit_identically_with_sgd(hvscale: Run, tmp_path: Path) -> None:
    """From a checkpoint of step 4: the later one of the whole training is removed."""
    (tmp_path / "dropping.py").write_text(DROPOUT)
    options = ("--optimizer", "sgd", "--checkpoint-dir", "kept")
    done = hvscale(*two_ranks("whole", 8, *options))
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "kept/step-000000008.ckpt").unlink()
    done = hvscale(*two_ranks("second", 8, *options, "--resume", "auto"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert same(tmp_path / "whole", tmp_path / "second")
    assert steps(tmp_path / "second") == steps(tmp_path / "whole")[4:]


def newest(folder: Path) -> int:
    """Return the step of the newest checkpoint in the folder; 0 without one."""
    return max((int(file.stem.split("-")[1]) for file in folder.glob("step-*.ckpt")), default=0)


def kill_two_ranks(tmp_path: Path, killed: str, *more: object) -> None:
    """Train on two ranks in a run folder named like what is killed after the next checkpoint."""
    before = newest(tmp_path / "kept")
    command = [str(PROGRAMS / "hvscale"), *map(str, two_ranks(killed, 10**6, *more))]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as launcher:
        try:
            wait_until(lambda: newest(tmp_path / "kept") > before)
            ranks = [
                process for process in processes_below(tmp_path) if process.environ().get("OMPI_COMM_WORLD_RANK") == "1"
            ]
            if killed == "rank 1":
                ranks[-1].kill()
                assert launcher.wait(HANG_SECONDS) == 3
        finally:
            launcher.kill()
            kill_below(tmp_path)


def test_two_ranks_that_end_or_are_killed_resume_bit_identically(hvscale: Run, tmp_path: Path) -> None:
    """With Adam. A first training ends; in a second one rank 1 is killed, then the job and its
    launcher.
    """
    (tmp_path / "dropping.py").write_text(DROPOUT)
    kept = ("--optimizer", "adam", "--checkpoint-dir", "kept", "--resume", "auto")
    kept_to = {}

    def train(run: str, count: int, *more: object) -> None:
        done = hvscale(*two_ranks(run, count, *more))
        assert done.returncode == 0, done.stdout + done.stderr

    train("first", 4, *kept)
    kept_to["first"] = newest(tmp_path / "kept")
    assert kept_to["first"] == 4
    for killed in ("rank 1", "the job and its launcher"):
        kill_two_ranks(tmp_path, killed, *kept)
        kept_to[killed] = newest(tmp_path / "kept")
    kept_to["last"] = newest(tmp_path / "kept") + 4
    train("last", kept_to["last"], *kept)
    train("whole", kept_to["last"], "--optimizer", "adam")
    assert same(tmp_path / "whole", tmp_path / "last")
    assert not same(tmp_path / "whole", tmp_path / "first")
    parts = [line for run, last in kept_to.items() for line in steps(tmp_path / run) if line[0] <= last]
    assert parts == steps(tmp_path / "whole")


def test_damaged_checkpoint_is_reported_and_the_previous_one_used(hvscale_warm: Run, tmp_path: Path) -> None:
    assert hvscale_warm(*EDSR, "--steps", 12, "--run", "whole").returncode == 0
    last = tmp_path / "whole/checkpoints/step-000000012.ckpt"
    last.write_bytes(last.read_bytes()[:-1])
    before = steps(tmp_path / "whole"), model(tmp_path / "whole")
    done = hvscale_warm(*EDSR, "--steps", 12, "--run", "whole", "--resume", "auto")
    assert done.returncode == 0, done.stderr
    assert "step-000000012.ckpt is damaged (it has" in done.stderr
    assert "resuming after step 8" in done.stderr
    assert steps(tmp_path / "whole") == before[0]
    assert all(torch.equal(value, before[1][key]) for key, value in model(tmp_path / "whole").items())
    last.write_bytes(b"")
    done = hvscale_warm(*EDSR, "--steps", 12, "--resume", last)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "the checkpoint is damaged" in done.stderr


def test_run_killed_before_its_first_checkpoint_starts_from_scratch(hvscale_warm: Run, tmp_path: Path) -> None:
    again = (*EDSR, "--steps", 4, "--run", "stopped", "--resume", "auto", "--checkpoint-every", 1000)
    kill_warm_after(tmp_path, 1, *again, "--steps", 1000)
    done = hvscale_warm(*again)
    assert done.returncode == 0, done.stderr
    assert [line[0] for line in steps(tmp_path / "stopped")] == [1, 2, 3, 4]


def test_finished_training_keeps_its_speed_if_it_is_started_again(hvscale_warm: Run, tmp_path: Path) -> None:
    again = (*EDSR, "--steps", 8, "--run", "whole", "--resume", "auto")
    assert hvscale_warm(*again).returncode == 0
    first = json.loads((tmp_path / "whole/result.json").read_text())
    assert first["images_per_second"] > 0
    done = hvscale_warm(*again)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "whole/result.json").read_text()) == first
    elsewhere = hvscale_warm(*EDSR, "--steps", 8, "--run", "new", "--resume", "whole")
    assert "speed: not measured: the checkpoint is of step 8, and no step was left to train" in elsewhere.stderr


def test_resumed_training_takes_the_new_weight_decay_and_refuses_another_model(
    hvscale_warm: Run, tmp_path: Path
) -> None:
    assert hvscale_warm(*EDSR, "--steps", 4, "--run", "first").returncode == 0
    done = hvscale_warm(*EDSR, "--steps", 8, "--run", "second", "--resume", "first", "--weight-decay", 0.25)
    assert done.returncode == 0, done.stderr
    assert "--weight-decay was 0.0 and is now 0.25" in done.stderr
    saved = read(tmp_path / "second/checkpoints/step-000000008.ckpt")
    assert [group["weight_decay"] for group in saved.optimizer["param_groups"]] == [0.25]
    for words, message in (
        (("--n-feats", 16), "--resume first: the checkpoint does not fit the model: "),
        (("--optimizer", "sgd"), "the checkpoint was trained with adam: resume it with --optimizer adam"),
    ):
        done = hvscale_warm(*EDSR, "--steps", 8, "--run", "third", "--resume", "first", *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert message in done.stderr


def test_a_length_of_another_kind_is_kept_or_replaced(hvscale_warm: Run, tmp_path: Path) -> None:
    """--seconds replaces a number of steps; without a length, training ends when it would have."""
    assert hvscale_warm(*EDSR, "--steps", 4, "--run", "first").returncode == 0
    done = hvscale_warm(*EDSR, "--seconds", 0.5, "--run", "second", "--resume", "first")
    assert done.returncode == 0, done.stderr
    agreed = steps(tmp_path / "second")[-1][0]
    assert agreed > 4
    for same_length in (("--seconds", 0.5), ()):
        done = hvscale_warm(*EDSR, *same_length, "--run", "third", "--resume", "second")
        assert done.returncode == 0, done.stderr
        assert f"the checkpoint is of step {agreed}, and no step was left to train" in done.stderr
        shutil.rmtree(tmp_path / "third")


def test_weights_are_those_of_the_latest_step(
    hvscale: Run, hvscale_warm: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed training that is killed leaves the earlier model.pt beside later checkpoints."""
    assert hvscale_warm(*EDSR, "--steps", 4, "--run", "short").returncode == 0
    assert hvscale_warm(*EDSR, "--steps", 8, "--run", "long").returncode == 0
    renamed = Path(shutil.copy(tmp_path / "long/checkpoints/step-000000008.ckpt", tmp_path / "best.ckpt"))

    def is_long(weights: Path) -> bool:
        expected = model(tmp_path / "long")
        return all(torch.equal(value, expected[key]) for key, value in read_weights(weights)[1].items())

    assert is_long(renamed)
    assert not is_long(tmp_path / "short")
    shutil.copy(renamed, tmp_path / "short/checkpoints/step-000000008.ckpt")
    assert is_long(tmp_path / "short")
    warning = "short/model.pt is of step 4: using the later checkpoint step-000000008.ckpt"
    assert warning in capsys.readouterr().err
    done = hvscale("launch", "-np", 2, "--run", "scores", "--", "hvscale", "eval", "short")
    assert done.returncode == 0, done.stderr
    assert [warning in (tmp_path / f"scores/logs/rank-{rank:05d}.log").read_text() for rank in (0, 1)] == [True, False]


def test_extra_states_of_modules_are_resumed_and_evaluated(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    options = ("--batch-size", 2, "--patch-size", 8, "--threads", 1, "--run", "counted", "--resume", "auto")
    for count in (3, 5):  # timing the precisions is not counted
        done = hvscale("train", "counting:net", *options, "--steps", count)
        assert done.returncode == 0, done.stderr
        assert model(tmp_path / "counted")["0._extra_state"] == {"seen": count}
    for words in (("eval", "counted"), ("upscale", "counted/picture.png", "--weights", "counted/model.pt")):
        done = hvscale(*words)
        assert done.returncode == 0, done.stderr
    done = hvscale("train", "counting:of_objects", "--steps", 1)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "a checkpoint cannot hold what get_extra_state returned as 0._extra_state: return tensors," in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--checkpoint-dir", "used"), "used holds checkpoints of another training, such as step-000000004.ckpt"),
        (("--resume", "weights.pt"), "--resume weights.pt: not a checkpoint; to start from weights, use --weights"),
        (("--resume", "auto"), "--resume auto needs --run or --checkpoint-dir"),
        (("--resume", "."), "--resume .: the folder holds no checkpoints"),
        (("--resume", "none.ckpt"), "cannot read the checkpoint none.ckpt: No such file"),
    ],
)
def test_invalid_request_is_one_line(hvscale_warm: Run, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used/step-000000004.ckpt").touch()
    torch.save({}, tmp_path / "weights.pt")
    done = hvscale_warm(*EDSR, "--steps", 2, *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr
