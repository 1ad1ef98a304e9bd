"""`hvscale check-gpu --dry-run` with real ranks: parts that run, fail, hang, crash, are stopped."""

import csv
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import HANG_SECONDS, PROGRAMS, Run, run_hvscale, wait_until

# Parts that go wrong, as a site would add its own: in a folder on PYTHONPATH.
BAD_STEPS = """
import os, sys
from hvscale.bench.gpu_check.step import step

@step("crashes", "raises", order=1, limit_seconds=30)
def crashes(context):
    context.hold("a line before the defect", True, "kept")
    raise ZeroDivisionError("a defect")

@step("hangs", "never ends", order=2, limit_seconds=2)
def hangs(context):
    context.run("sleep", [sys.executable, "-c", "import time; time.sleep(1200)"])

@step("killed", "dies", order=3, limit_seconds=30)
def killed(context):
    with context.claim("it lives"):
        context.run("dies", [sys.executable, "-c", "import os, sys; print('about to die', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"])
    context.hold("the step goes on", True)

@step("leaves", "leaves a process", order=4, limit_seconds=30)
def leaves(context):
    program = "import subprocess, sys; subprocess.Popen(['sleep', '1211'], start_new_session=True)"
    context.run("leaves", [sys.executable, "-c", program])

@step("waits", "is interrupted", order=5, limit_seconds=300)
def waits(context):
    context.hold("a line before the interrupt", True)
    (context.folder / "ready").write_text("")
    context.run("sleep", ["sleep", "1212"])
"""
SMALL = "nccl-plugin,devices,training,leftovers"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    steps = folder / "hvscale_plugins/bench/gpu_check/steps"
    steps.mkdir(parents=True)
    (steps / "bad.py").write_text(BAD_STEPS)
    return folder


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("check")
    (folder / "numbers.py").write_text("raise SystemExit")  # it replaces none of Python's modules
    options = ("--dry-run", "--only", SMALL, "--run", "check", "--json", "--csv", "lines.csv")
    done = run_hvscale(folder, "check-gpu", *options)
    return done, folder


def lines_of(document: dict[str, Any], step: str) -> dict[str, str]:
    return {line["claim"]: line["status"] for line in document["lines"] if line["step"] == step}


def test_a_dry_run_holds_nothing_and_names_what_needs_a_gpu(
    dry_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, folder = dry_run
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "hvscale/check-gpu/1"
    assert (document["state"], document["dry_run"]) == ("finished", True)
    assert [step["name"] for step in document["steps"]] == SMALL.split(",")
    assert all(0 < step["seconds"] <= step["limit_seconds"] for step in document["steps"])
    statuses = {line["status"] for line in document["lines"]}
    assert statuses == {"dry run", "needs a GPU", "not possible"}
    counted = lines_of(document, "nccl-plugin")
    assert [counted[name] for name in counted if "calls and bytes" in name] == ["dry run"] * 4
    assert counted["NCCL loads the plug-in and times calls on the GPU"] == "needs a GPU"
    assert lines_of(document, "training") == {
        "2 ranks train as one process does": "dry run",
        "the fp16 loss scaler skips a step that overflows": "dry run",
    }
    devices = lines_of(document, "devices")
    assert devices["--devices split: the program sees its GPU, the library all"] == "not possible"
    assert document == json.loads((folder / "check/check-gpu.json").read_text())


def test_a_dry_run_writes_page_and_csv(dry_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, folder = dry_run
    html = (folder / "check/check-gpu.html").read_text()
    assert "no GPU was checked" in html
    with (folder / "lines.csv").open() as stream:
        written = list(csv.DictReader(stream))
    assert [row["claim"].removeprefix("'") for row in written] == [
        line["claim"] for line in json.loads(done.stdout)["lines"]
    ]


def test_bad_requests_are_one_line(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    for arguments, text in (
        (["--only", "devises", "--dry-run"], "--only devises: unknown part; did you mean devices"),
        (["--only", "devices", "--dry-run", "--mpi", "gloo"], "--mpi gloo: the check starts its ranks by MPI"),
        (["--only", "devices", "--dry-run", "--mpi", "opnmpi"], "did you mean openmpi"),
        (["--only", "devices", "--dry-run", "--run", "full"], "full is not empty"),
        (["--dry-run", "--csv", "missing/a.csv"], "cannot write missing/a.csv: No such file or directory"),
        (["--list", "--json"], "--list prints a table only: leave out --json and --csv"),
    ):
        done = hvscale("check-gpu", *arguments)
        assert done.returncode == 2, done.stderr
        assert text in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_part_that_goes_wrong_is_a_failed_line_and_the_others_run(plugins: Path, tmp_path: Path) -> None:
    parts = "crashes,hangs,killed,leaves,nccl-tests,leftovers"
    done = run_hvscale(
        tmp_path, "check-gpu", "--dry-run", "--only", parts, "--run", "check", "--json", PYTHONPATH=str(plugins)
    )
    assert done.returncode == 4, done.stderr
    assert "4 of 8 lines failed, first crashes:" in done.stderr
    document = json.loads(done.stdout)
    found = {step: lines_of(document, step) for step in parts.split(",")}
    assert found["crashes"] == {"a line before the defect": "dry run", "crashes runs to its end": "failed"}
    assert found["hangs"] == {"hangs ends within 6 s": "failed"}
    assert found["killed"] == {"it lives": "failed", "the step goes on": "dry run"}
    assert found["nccl-tests"] == {"bench allreduce agrees with nccl-tests": "needs a GPU"}
    assert found["leftovers"]["no process of a rank is left after a step"] == "failed"
    by_claim = {line["claim"]: line for line in document["lines"]}
    assert "killed by signal 9" in by_claim["it lives"]["reason"]
    assert by_claim["it lives"]["last_lines"] == ["about to die"]
    assert by_claim["crashes runs to its end"]["last_lines"][-1] == "ZeroDivisionError: a defect"
    assert "sleep 1211" in by_claim["no process of a rank is left after a step"]["reason"]
    assert [step["state"] for step in document["steps"]] == ["failed", "failed", *["finished"] * 4]
    assert not running("1211")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_and_keeps_what_was_found(
    plugins: Path, tmp_path: Path, number: signal.Signals
) -> None:
    words: list[str | Path] = [
        PROGRAMS / "hvscale",
        "check-gpu",
        "--dry-run",
        "--only",
        "waits,devices",
        "--run",
        "check",
        "--json",
    ]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(
            words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(plugins)}, stdout=out, stderr=err
        )
        wait_until((tmp_path / "check/waits/ready").exists)
        wait_until(lambda: bool(running("1212")))
        process.send_signal(number)
        assert process.wait(HANG_SECONDS) == 128 + number, (tmp_path / "err").read_text()
    document = json.loads((tmp_path / "out").read_text())
    assert (document["state"], [step["state"] for step in document["steps"]]) == (
        "interrupted",
        ["interrupted", "waiting"],
    )
    assert lines_of(document, "waits") == {"a line before the interrupt": "dry run"}
    assert f"interrupted by {number.name}" in (tmp_path / "err").read_text()
    assert (tmp_path / "check/check-gpu.html").exists()
    assert not running("1212")


def running(seconds: str) -> list[int]:
    """The processes of `sleep SECONDS`."""
    return [
        process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", seconds]
    ]
