"""The options for precision, compilation and CPU cores."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from tests.conftest import PROGRAMS, Run, wait_until
from tests.system.test_resume import EDSR, same, steps

CONTIGUOUS = (*EDSR[: EDSR.index("--precision")], "--memory-format", "contiguous", "--threads", 1)


def losses(run: Path) -> list[float]:
    return [step[1] for step in steps(run)]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_follows_fp32(hvscale_warm: Run, tmp_path: Path, precision: str) -> None:
    for name in ("fp32", precision):
        words = (*CONTIGUOUS, "--steps", 12, "--precision", name, "--learning-rate", "1e-3", "--run", name)
        done = hvscale_warm(*words)
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / precision / "result.json").read_text())["precision"] == precision
    low, full = losses(tmp_path / precision), losses(tmp_path / "fp32")
    assert low != full
    made = [not json.loads(line)["skipped"] for line in (tmp_path / precision / "steps.jsonl").read_text().splitlines()]
    assert sum(made) >= 8
    alike = 12 if all(made) else made.index(False) + 1
    assert low[:alike] == pytest.approx(full[:alike], rel=0.05)


def test_fp16_resumes_with_its_loss_scale(hvscale_warm: Run, tmp_path: Path) -> None:
    """Scaled gradients may overflow in the first steps, which halves the loss scale without an
    error.
    """
    train = (*CONTIGUOUS, "--precision", "fp16", "--checkpoint-every", 6, "--steps")
    assert hvscale_warm(*train, 12, "--run", "whole").returncode == 0
    assert hvscale_warm(*train, 6, "--run", "first").returncode == 0
    assert hvscale_warm(*train, 12, "--run", "second", "--resume", "first").returncode == 0
    assert same(tmp_path / "whole", tmp_path / "second")
    saved = (tmp_path / "first/checkpoints/step-000000006.ckpt").read_bytes().split(b"\n", 1)[1]
    (tmp_path / "content").write_bytes(saved)
    scaler = torch.load(tmp_path / "content", weights_only=True)["scaler"]
    skipped = [json.loads(line)["skipped"] for line in (tmp_path / "first/steps.jsonl").read_text().splitlines()]
    assert scaler["scale"] == 65536 / 2 ** sum(skipped)


def test_compiled_blocks_train_the_same_model(hvscale: Run, hvscale_warm: Run, tmp_path: Path) -> None:
    assert hvscale_warm(*EDSR, "--steps", 4, "--run", "eager").returncode == 0
    done = hvscale(*EDSR, "--steps", 4, "--run", "compiled", "--compile")
    assert done.returncode == 0, done.stderr
    eager, compiled = (torch.load(tmp_path / run / "model.pt", weights_only=True) for run in ("eager", "compiled"))
    assert eager.keys() == compiled.keys()
    assert all(torch.allclose(value, compiled[name], atol=1e-5) for name, value in eager.items())
    done = hvscale_warm("train", "vgg11", "--data", "synthetic", "--image-size", 32, "--compile", "--precision", "fp32")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "hvscale: the model has no repeated blocks to compile: leave out --compile",
    )


def test_pinned_ranks_have_separate_cores(tmp_path: Path) -> None:
    words = ("launch", "-np", 2, "--run", "job", "--", "hvscale", *EDSR, "--steps", 100000, "--pin")
    file = tmp_path / "job/steps.jsonl"

    def cores(rank: int) -> str:
        pid = json.loads((tmp_path / f"job/ranks/rank-{rank:05d}.json").read_text())["pid"]
        status = Path(f"/proc/{pid}/status").read_text()
        return next(line.split(":")[1].strip() for line in status.splitlines() if line.startswith("Cpus_allowed_list"))

    with subprocess.Popen([PROGRAMS / "hvscale", *map(str, words)], cwd=tmp_path, stdout=subprocess.DEVNULL) as job:
        try:
            wait_until(lambda: file.exists() and file.stat().st_size > 0)
            assert cores(0) != cores(1)
        finally:
            job.send_signal(signal.SIGTERM)
