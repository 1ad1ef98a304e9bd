"""Waits before the ranks start have a time limit, and signals interrupt them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hvscale.launch.rank_side import host_preflight
from tests.conftest import HANG_SECONDS, PROGRAMS, Run, processes_below, run_json, wait_until

# Shell commands for HVSCALE_SSH that hang before connecting, after connecting, or after the first
# answer.
UNRESPONSIVE = {
    "before": "sleep 1200",
    "connected": "read question; sleep 1200",
    "after": 'read question; printf "%s\\n" "$question" | '
    f'SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" {sys.executable} -I {host_preflight.__file__} | head -n 1; sleep 1200',
}
LONG_TIMEOUT = "300"


@pytest.fixture(params=UNRESPONSIVE)
def unresponsive_ssh(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return an environment in which every ssh hangs; it first creates the file `asked`."""
    script = tmp_path / "silent-ssh"
    hanging = UNRESPONSIVE[request.param].replace("sleep", f"touch {tmp_path}/asked; sleep")
    script.write_text(f"#!/bin/sh\nexport HVSCALE_RUN={tmp_path}/job\n{hanging}\n")
    script.chmod(0o755)
    return {"HVSCALE_SSH": str(script)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_the_wait_for_a_host(
    tmp_path: Path, unresponsive_ssh: dict[str, str], number: signal.Signals
) -> None:
    launcher = subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", "-np", "2", "--hosts", "alpha,beta", "--run", "job", "--", "true"],
        cwd=tmp_path,
        env={**os.environ, **unresponsive_ssh, "HVSCALE_ANSWER_TIMEOUT": LONG_TIMEOUT},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "asked").exists)
    launcher.send_signal(number)
    launcher.send_signal(number)
    _, stderr = launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 128 + number, stderr
    assert f"interrupted by {number.name}" in stderr
    assert run_json(tmp_path / "job")["state"] == "interrupted"
    # On a busy machine killed processes end a moment later.
    wait_until(lambda: processes_below(tmp_path) == [])


@pytest.mark.parametrize("unresponsive_ssh", ["before"], indirect=True)
def test_a_signal_during_the_host_checks_leaves_no_ssh(tmp_path: Path, unresponsive_ssh: dict[str, str]) -> None:
    """With 60 hosts, the signal arrives while ssh processes are still being started."""
    hosts = ",".join(f"host{number}" for number in range(60))
    launcher = subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", "-np", "60", "--hosts", hosts, "--run", "job", "--", "true"],
        cwd=tmp_path,
        env={**os.environ, **unresponsive_ssh, "HVSCALE_ANSWER_TIMEOUT": LONG_TIMEOUT},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "asked").exists)
    launcher.send_signal(signal.SIGTERM)
    _, stderr = launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 128 + signal.SIGTERM, stderr
    wait_until(lambda: processes_below(tmp_path) == [])


def test_an_unresponsive_host_is_named(hvscale: Run, tmp_path: Path, unresponsive_ssh: dict[str, str]) -> None:
    done = hvscale(
        *("launch", "-np", 2, "--hosts", "alpha,beta", "--run", "job", "--", "true"),
        **unresponsive_ssh,
        HVSCALE_ANSWER_TIMEOUT="1",
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "host alpha has not answered by ssh within 1 s" in line
    assert "HVSCALE_ANSWER_TIMEOUT=SECONDS" in line
    assert run_json(tmp_path / "job")["state"] == "failed"
    wait_until(lambda: processes_below(tmp_path) == [])
