"""`hvscale train` under every launcher, and `hvscale demo`."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from hvscale.trainer import demo_config
from tests.conftest import DIRECT_START, HANG_SECONDS, PROGRAMS, Run, run_json, wait_until

TINY = (
    *("--n-resblocks", "1", "--n-feats", "8", "--batch-size", "2", "--patch-size", "16", "--steps", "4"),
    *("--precision", "fp32", "--memory-format", "contiguous"),
)
TRAIN = ("hvscale", "train", "edsr-baseline", *TINY)


def check_run(run: Path, np: int) -> None:
    """Check that the run folder of a training run is complete."""
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert all(step["images"] == 2 * np and step["seconds"] > 0 and step["loss"] > 0 for step in steps)
    result = json.loads((run / "result.json").read_text())
    assert (result["schema"], result["np"], result["steps"]) == ("hvscale/train/1", np, 4)
    assert len(result["images_per_second_by_rank"]) == np
    assert run_json(run)["state"] == "finished"
    assert run_json(run)["np"] == np
    assert (run / "model.pt").stat().st_size > 0
    with Image.open(run / "picture.png") as picture:
        picture.load()


def test_training_in_a_single_process(hvscale: Run, tmp_path: Path) -> None:
    done = hvscale(*TRAIN[1:], "--run", "job", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0, done.stderr
    assert "PSNR" in done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "torch.optim" in imported
    assert "torch._dynamo" not in imported, "torch.compile doubles the start of a rank"
    check_run(tmp_path / "job", 1)


def test_ctrl_c_is_one_line_and_leaves_a_readable_run_folder(tmp_path: Path) -> None:
    command = [str(PROGRAMS / "hvscale"), "train", "edsr-baseline", "--batch-size", "2", "--precision", "fp32"]
    training = subprocess.Popen(
        [*command, "--memory-format", "contiguous", "--run", "job"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # Tests started in a shell's background ignore Ctrl-C, and their child processes inherit
        # that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    steps = tmp_path / "job/steps.jsonl"
    try:
        wait_until(lambda: steps.exists() and steps.stat().st_size > 0)
        training.send_signal(signal.SIGINT)
        _, stderr = training.communicate(timeout=HANG_SECONDS)
    finally:
        training.kill()
    assert training.returncode == 130
    assert stderr.splitlines()[-1] == "hvscale: stopped by Ctrl-C"
    assert (run_json(tmp_path / "job")["state"], run_json(tmp_path / "job")["exit_status"]) == ("interrupted", 130)


@pytest.mark.parametrize("mpi", ["openmpi", "gloo"])
def test_training_under_hvscale_launch(hvscale: Run, tmp_path: Path, mpi: str) -> None:
    done = hvscale("launch", "-np", 2, "--mpi", mpi, "--run", "job", "--", *TRAIN)
    assert done.returncode == 0, done.stdout + done.stderr
    check_run(tmp_path / "job", 2)
    assert run_json(tmp_path / "job")["library"]["flavour"] == mpi


@pytest.mark.parametrize(
    "launcher",
    [("horovodrun", "--gloo", "-np", "2"), ("mpirun", "-np", "2", "--bind-to", "none")],
    ids=lambda launcher: launcher[0],
)
def test_training_under_mpirun_and_horovodrun(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    environment = {**os.environ, **DIRECT_START, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    command = [str(PROGRAMS / launcher[0]), *launcher[1:], *TRAIN, "--run", "job"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    check_run(tmp_path / "job", 2)
    assert (done.stdout + done.stderr).count("PSNR on") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--scale", "5"), "--scale 5"),
        (("--batch-size", "0"), "--batch-size 0"),
        (("--seconds", "5"), "--steps and --seconds exclude each other"),
    ],
)
def test_invalid_option_is_one_line_and_status_2(
    hvscale: Run, tmp_path: Path, change: tuple[str, ...], message: str
) -> None:
    check_rejected(hvscale(*TRAIN[1:], *change), message, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("train", "resnet-9000", *TINY), "resnet-9000: unknown model; did you mean resnet"),
        ((*TRAIN[1:], "--data", "nowhere"), "nowhere"),
        ((*TRAIN[1:], "--data", "empty"), "empty"),
        ((*TRAIN[1:], "--data", "damaged"), "damaged/b.png"),
        ((*TRAIN[1:], "--holdout", "nobody"), "nobody"),
        ((*TRAIN[1:], "--run", "/proc/job"), "/proc/job"),
    ],
)
def test_invalid_request_is_one_line_and_status_2(
    hvscale_warm: Run, tmp_path: Path, change: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    for name in "abc":
        Image.radial_gradient("L").convert("RGB").save(tmp_path / f"damaged/{name}.png")
    (tmp_path / "damaged/b.png").write_bytes((tmp_path / "damaged/b.png").read_bytes()[:2000])
    check_rejected(hvscale_warm(*change), message, tmp_path)


def check_rejected(done: subprocess.CompletedProcess[str], message: str, folder: Path) -> None:
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(folder.glob("runs/*"))


def test_two_ranks_report_an_error_once(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = hvscale("launch", "-np", 2, "--run", "job", "--", *TRAIN, "--data", "empty")
    assert done.returncode == 3
    lines = [line for line in done.stdout.splitlines() if "empty" in line]
    assert len(lines) == 1
    assert run_json(tmp_path / "job")["ranks"][0]["exit_status"] == 2


def test_full_disk_ends_training_with_one_line(hvscale_warm: Run, small_disk: Callable[..., Path]) -> None:
    small = small_disk("32k")
    done = hvscale_warm(*TRAIN[1:], "--run", small / "job")
    assert done.returncode == 2, done.stderr
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert len((small / "job/steps.jsonl").read_text().splitlines()) == 4
    record = run_json(small / "job")
    assert (record["state"], record["exit_status"]) == ("failed", 2)
    assert "No space left" in record["warnings"][-1]


def test_demo(hvscale: Run, tmp_path: Path) -> None:
    """Does not check the PSNR, which depends on the machine's speed."""
    done = hvscale("demo", "--seconds", 1, "--run", "job")
    assert done.returncode == 0, done.stderr
    for expected in ("PSNR on", "images/s in total", "allreduce", "busbw", "run folder:", "picture:"):
        assert expected in done.stdout
    assert json.loads((tmp_path / "job/result.json").read_text())["np"] == 2
    assert json.loads(hvscale("breakdown", "job", "--json").stdout)["source"] == "hvprof"
    command = run_json(tmp_path / "job")["command"]
    assert command[1:] == ["train", *demo_config(seconds=1).arguments()]


def test_demo_without_time_is_one_line(hvscale: Run) -> None:
    done = hvscale("demo", "--seconds", 0)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "--seconds" in done.stderr


def test_model_of_the_demo_beats_bicubic(hvscale_warm: Run, tmp_path: Path) -> None:
    """Trains fewer steps than a busy two-core machine completes in a minute.

    One process trains on the combined batch of two ranks.
    """
    demo = demo_config()
    config = demo.model_copy(update={"seconds": None, "steps": 360, "batch_size": 2 * demo.batch_size, "threads": 1})
    done = hvscale_warm("train", *config.arguments(), "--run", "job", timeout=900)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "job/result.json").read_text())
    assert result["psnr_db"] > result["bicubic_psnr_db"] + 0.3
