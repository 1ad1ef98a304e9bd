"""What run.json says of the machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hvscale.core import host
from hvscale.core.host import scheduling

ASK = [sys.executable, "-c", "from hvscale.core.host import scheduling; print(scheduling())"]


def test_the_scheduling_of_the_ranks_is_that_of_hvscale() -> None:
    assert scheduling() == "default"
    for option, name in (("--batch", "batch"), ("--rr", "round-robin")):
        done = subprocess.run(["chrt", option, "1" if option == "--rr" else "0", *ASK], capture_output=True, text=True)
        if "failed to set" in done.stderr:
            pytest.skip("a real-time priority needs root")
        assert done.stdout.strip() == name, done.stderr


@pytest.mark.parametrize("program", ["echo no driver >&2; exit 9", "exec sleep 1200"])
def test_a_tool_that_answers_nothing_shows_no_gpu(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{program}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(host, "ANSWER_SECONDS", 0.5)
    host.gpus.cache_clear()
    try:
        assert host.gpus() == []
        assert host.gpu_topology() == ""
    finally:
        host.gpus.cache_clear()


def test_the_caches_of_a_core_are_its_share_of_those_that_lscpu_lists() -> None:
    # Not getconf: glibc 2.36 adds up the third-level caches of an AMD processor.
    asked = subprocess.run(["lscpu", "--bytes", "--caches=NAME,ALL-SIZE"], capture_output=True, text=True)
    totals = {name: int(total) for name, total in map(str.split, asked.stdout.splitlines()[1:])}
    found = host.cache_bytes()
    if found is None or not {"L2", "L3"} <= totals.keys():
        pytest.skip("this machine does not tell the sizes of its caches")
    cpus = os.cpu_count() or 1
    assert found == (totals["L2"] // cpus, totals["L3"] // cpus)


def test_the_congestion_control_of_tcp_is_the_one_that_new_connections_have() -> None:
    with socket.socket() as connection:
        used = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert host.tcp_congestion_control() == used.split(b"\0")[0].decode()
