"""Training logs to wandb, TensorBoard and the terminal; no logger delays training."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hvscale as package
from tests import preloaded
from tests.conftest import HANG_SECONDS, PROGRAMS, Run, run_json, wait_until
from tests.system import wandb_file

TINY = (
    *("--n-resblocks", "1", "--n-feats", "8", "--batch-size", "2", "--patch-size", "16"),
    *("--precision", "fp32", "--memory-format", "contiguous", "--threads", "1"),
)
EDSR = ("train", "edsr-baseline", *TINY)
TRAIN = (*EDSR, "--run", "job")
SHORT = (*TRAIN, "--steps", "4")
LONG = (*TRAIN, "--steps", "1000000")
SHORT_WAIT = {"WANDB_INIT_TIMEOUT": "3"}
KEY = {"WANDB_API_KEY": "0123456789" * 4}
STEP_VALUES = {"loss", "learning_rate", "images_per_second", "seconds", "data_wait_seconds"}


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def warnings(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if "warning" in line or "wandb:" in line]


def events(run: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(run / "tensorboard"))
    accumulator.Reload()
    return accumulator


@contextmanager
def training(folder: Path, *options: str) -> Iterator[BaseProcess]:
    """Start a long training run, in a forked process that has torch loaded; yield it after its
    first step.
    """
    process = preloaded.start([*LONG, *options], folder, dict(os.environ), folder)
    try:
        steps = folder / "job/steps.jsonl"
        wait_until(lambda: steps.exists() and steps.stat().st_size > 0)
        yield process
    finally:
        process.kill()
        process.join()


def stop(process: BaseProcess, folder: Path, seconds: float) -> str:
    """Send SIGTERM; return what was written to stderr after it has stopped, with status 75."""
    os.kill(process.pid or 0, signal.SIGTERM)
    status = preloaded.wait(process, seconds)
    stderr = (folder / "stderr").read_text()
    assert status == 75, stderr
    return stderr


def logger_of(process: BaseProcess) -> psutil.Process:
    (found,) = psutil.Process(process.pid).children()
    return found


@pytest.mark.parametrize("mpi", ["openmpi", "gloo"])
def test_a_profiled_run_is_logged_to_wandb_and_tensorboard(
    hvscale: Run, hvscale_warm: Run, tmp_path: Path, mpi: str
) -> None:
    alone = hvscale_warm(*EDSR, "--steps", 4, "--run", "alone")
    assert alone.returncode == 0, alone.stderr
    options = ("--wandb", "offline", "--tensorboard", "--one-rank-run", "alone")
    done = hvscale(
        "profile",
        "-np",
        2,
        "--mpi",
        mpi,
        "--run",
        "job",
        "--json",
        "--",
        "hvscale",
        *SHORT[:-4],
        *options,
        "--steps",
        4,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "job"
    result = json.loads((run / "result.json").read_text())
    one_rank = json.loads((tmp_path / "alone/result.json").read_text())["images_per_second"]
    efficiency = result["images_per_second"] / (2 * one_rank)
    exposed = json.loads(done.stdout)["exposed_communication"]["mean_share_at_most"]

    history, logged = wandb_file.history(run), events(run)
    scalars = {tag: [(event.step, event.value) for event in logged.Scalars(tag)] for tag in logged.Tags()["scalars"]}
    steps = steps_of(run)
    assert [values["_step"] for values in history] == [step["step"] for step in steps] == [1, 2, 3, 4]
    for values, step in zip(history, steps, strict=True):
        expected = {
            **{name: step[name] for name in (*STEP_VALUES, "communication_seconds") if name in step},
            "images_per_second": step["images"] / step["seconds"],
            "scaling_efficiency": step["images"] / step["seconds"] / (2 * one_rank),
        }
        assert {name: values[name] for name in expected} == pytest.approx(expected)
        at_step = {name: dict(scalars[name])[step["step"]] for name in expected}
        assert at_step == pytest.approx(expected, rel=1e-5)  # TensorBoard stores 32-bit floats
    final = {
        "result/psnr_db": result["psnr_db"],
        "result/images_per_second": result["images_per_second"],
        "result/scaling_efficiency": efficiency,
        "result/exposed_communication_share_at_most": exposed,
    }
    assert {name: history[-1][name] for name in final} == pytest.approx(final)
    assert {name: scalars[name][-1] for name in final} == {name: (4, pytest.approx(final[name])) for name in final}

    picture = (run / "picture.png").read_bytes()
    assert logged.Images("picture")[-1].encoded_image_string == picture
    (files,) = run.glob("wandb/offline-run-*/files")
    assert (files / history[-1]["picture.path"]).read_bytes() == picture
    table = json.loads((files / history[-1]["message_sizes.path"]).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    recorded = json.loads(done.stdout)["rows"]
    assert {row["operation"] for row in rows} >= {"allreduce"}
    for row in rows:
        # The job sent more messages after the table was logged, of the same sizes.
        assert any(row["operation"] == other["operation"] and row["calls"] <= other["calls"] for other in recorded)
    assert "allreduce | " in logged.Tensors("message_sizes")[0].tensor_proto.string_val[0].decode()

    artifact = wandb_file.artifact(run)
    assert {"run.json", "steps.jsonl", "result.json", "model.pt", "picture.png"} <= set(artifact)
    assert any(name.startswith("hvprof/") for name in artifact)
    assert artifact["steps.jsonl"].read_bytes() == (run / "steps.jsonl").read_bytes()
    assert artifact["model.pt"].read_bytes() == (run / "model.pt").read_bytes()
    assert run_json(run)["warnings"] == []


def test_unknown_values_are_not_logged(hvscale_warm: Run, tmp_path: Path) -> None:
    done = hvscale_warm(*SHORT, "--wandb", "offline", "--tensorboard")
    assert done.returncode == 0, done.stderr
    assert warnings(done) == []
    history, logged = wandb_file.history(tmp_path / "job"), events(tmp_path / "job")
    names = (
        {name for values in history for name in values} | set(logged.Tags()["scalars"]) | set(logged.Tags()["tensors"])
    )
    assert names > STEP_VALUES
    assert not [name for name in names if "communication" in name or "efficiency" in name or "message_sizes" in name]


def test_a_resumed_run_logs_each_step_once(hvscale_warm: Run, tmp_path: Path) -> None:
    assert hvscale_warm(*SHORT, "--tensorboard", "--checkpoint-every", 3).returncode == 0
    (tmp_path / "job/checkpoints/step-000000004.ckpt").unlink()
    done = hvscale_warm(*TRAIN, "--steps", 6, "--tensorboard", "--resume", "auto")
    assert done.returncode == 0, done.stderr
    losses = [(event.step, event.value) for event in events(tmp_path / "job").Scalars("loss")]
    assert losses == [(step["step"], pytest.approx(step["loss"])) for step in steps_of(tmp_path / "job")]
    assert len(losses) == 6


def test_wandb_logs_offline_without_a_server(hvscale_warm: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    done = hvscale_warm(*SHORT, "--wandb", "online", WANDB_BASE_URL=f"http://127.0.0.1:{port}", **KEY, **SHORT_WAIT)
    check_logged_offline(done, tmp_path / "job")


def test_wandb_logs_offline_if_the_server_never_answers(hvscale_warm: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        done = hvscale_warm(*SHORT, "--wandb", "online", WANDB_BASE_URL=address, **KEY, **SHORT_WAIT)
    check_logged_offline(done, tmp_path / "job")


def test_wandb_logs_offline_without_a_login(hvscale_warm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    done = hvscale_warm(*SHORT, "--wandb", "online", HOME=str(tmp_path))
    check_logged_offline(done, tmp_path / "job")
    assert "wandb login" in warnings(done)[0]


def check_logged_offline(done: subprocess.CompletedProcess[str], run: Path) -> None:
    assert done.returncode == 0, done.stderr
    (warning,) = warnings(done)
    assert warning.startswith("hvscale: warning: --wandb: logs offline (")
    (offline,) = run.glob("wandb/offline-run-*")
    assert f"`wandb sync {offline}`" in warning
    (log,) = offline.glob("*.wandb")
    assert log.stat().st_size > 0
    assert json.loads((run / "result.json").read_text())["steps"] == 4
    assert run_json(run)["state"] == "finished"


def test_a_logger_that_cannot_write_is_a_warning(hvscale_warm: Run, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for name in ("wandb", "tensorboard"):
        (tmp_path / "job" / name).write_text("a file instead of a folder")
    done = hvscale_warm(*SHORT, "--wandb", "offline", "--tensorboard")
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stderr.splitlines() if line.startswith("hvscale: warning: ")]
    assert sorted(line.split()[2] for line in warned) == ["--tensorboard:", "--wandb:"]
    assert run_json(tmp_path / "job")["state"] == "finished"


@pytest.mark.parametrize(("folder", "option"), [("wandb", ("--wandb", "offline")), ("tensorboard", ("--tensorboard",))])
def test_a_full_disk_of_a_logger_is_a_warning(
    hvscale_warm: Run, small_disk: Callable[..., Path], tmp_path: Path, folder: str, option: tuple[str, ...]
) -> None:
    small_disk("8k", f"job/{folder}")
    done = hvscale_warm(*SHORT, *option)
    assert done.returncode == 0, done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if line.startswith("hvscale: warning: ")]
    assert "o space left" in warning
    assert run_json(tmp_path / "job")["state"] == "finished"


def test_a_killed_logger_is_a_warning(tmp_path: Path) -> None:
    with training(tmp_path, "--wandb", "offline") as process:
        logger_of(process).kill()
        before = (tmp_path / "job/steps.jsonl").stat().st_size
        wait_until(lambda: (tmp_path / "job/steps.jsonl").stat().st_size > before)
        stderr = stop(process, tmp_path, 60)
    assert [line for line in stderr.splitlines() if "warning" in line] == [
        f"hvscale: warning: --wandb: its process ended with status -9: see {tmp_path}/job/logs/wandb.log"
    ]


def test_a_hung_logger_does_not_keep_training_from_stopping(tmp_path: Path) -> None:
    with training(tmp_path, "--wandb", "offline") as process:
        logger = logger_of(process)
        logger.suspend()
        stderr = stop(process, tmp_path, 30)  # the maximum time to stop
    assert len([line for line in stderr.splitlines() if "warning: --wandb" in line]) == 1
    assert not logger.is_running()


def test_a_killed_rank_keeps_its_logged_steps_and_leaves_no_logger(tmp_path: Path) -> None:
    with training(tmp_path, "--wandb", "offline") as process:
        logger = logger_of(process)
        wait_until(lambda: len(list((tmp_path / "job").glob("wandb/offline-run-*/*.wandb"))) == 1)
        process.kill()
        logger.wait(HANG_SECONDS)
    history, steps = wandb_file.history(tmp_path / "job"), steps_of(tmp_path / "job")
    assert [(values["_step"], values["loss"]) for values in history] == [(step["step"], step["loss"]) for step in steps]


def test_without_the_package_the_error_is_one_line(tmp_path: Path) -> None:
    """Runs in an environment with all installed packages except wandb."""
    environment = tmp_path / "environment"
    environment.mkdir()
    for path in Path(psutil.__file__).parents[1].iterdir():
        if not path.name.startswith("wandb") and path.suffix != ".pth":
            (environment / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", "from hvscale.cli.main import main; main()", *SHORT, "--wandb", "offline"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{environment}:{Path(package.__file__).parents[1]}"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines() == [
        f"hvscale: --wandb needs a package that is not installed: {sys.executable} -m pip install wandb"
    ]
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--wandb", "on"), "--wandb on: input should be 'off', 'offline' or 'online'"),
        (("--one-rank-run", "nowhere"), "--one-rank-run nowhere: no result.json of a training run there"),
    ],
)
def test_an_invalid_option_is_one_line_and_status_2(hvscale_warm: Run, options: tuple[str, ...], message: str) -> None:
    done = hvscale_warm(*SHORT, *options)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_options_that_only_loggers_use_are_warned_of_without_one(hvscale_warm: Run) -> None:
    alone = hvscale_warm(*EDSR, "--steps", 1, "--run", "alone", "--wandb-project", "mine")
    compared = hvscale_warm(*EDSR, "--steps", 1, "--run", "compared", "--one-rank-run", "alone", "--wandb", "off")
    assert (alone.returncode, compared.returncode) == (0, 0)
    warnings = [[line for line in done.stderr.splitlines() if "warning" in line] for done in (alone, compared)]
    assert warnings == [
        ["hvscale: warning: --wandb-project has no effect without --wandb offline or --wandb online"],
        ["hvscale: warning: --one-rank-run has no effect without --wandb or --tensorboard"],
    ]


def test_a_terminal_shows_loss_speed_and_time_left(tmp_path: Path) -> None:
    our_end, its_end = pty.openpty()
    with subprocess.Popen(
        [str(PROGRAMS / "hvscale"), *SHORT],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
        stderr=its_end,
    ) as process:
        os.close(its_end)
        shown = b""
        while True:
            try:
                read = os.read(our_end, 65536)
            except OSError:  # Linux reports the end of a terminal this way
                break
            shown += read
    os.close(our_end)
    assert process.returncode == 0, shown
    last = shown.decode().rpartition("training")[2]
    for expected in ("4/4", "images/s", f"loss  {steps_of(tmp_path / 'job')[-1]['loss']:.2f}", "left", "0:00:00"):
        assert expected in last
