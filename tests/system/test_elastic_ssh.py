"""Elastic training on hosts that are network namespaces with an ssh server each."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.system.elastic import COMMIT_EVERY, check_samples, elastic_job
from tests.system.services import SshHosts, output


@pytest.fixture
def ssh_job(ssh: SshHosts, tmp_path: Path) -> Callable[..., Any]:
    """Start a rank on each of `alpha` and `beta`; horovodrun uses ssh from a third host."""
    wrapper = tmp_path / "ssh"  # horovodrun has no option for ssh's configuration, but calls it by name
    _, *options = ssh.ssh.split()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {" ".join(options)} -o ServerAliveInterval=2 "$@"\n')
    wrapper.chmod(0o755)
    return partial(
        elastic_job,
        tmp_path,
        hosts=(ssh.addresses["alpha"], ssh.addresses["beta"]),
        interface="eth0",
        within=("ip", "netns", "exec", ssh.namespaces["bare"]),
    )


def test_job_continues_without_a_killed_rank_or_a_disconnected_host_until_it_returns(
    ssh_job: Callable[..., Any], ssh: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First a rank on another host is killed and replaced, later a host loses its network."""
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "5")
    alpha, beta = ssh.addresses["alpha"], ssh.addresses["beta"]
    link = ("ip", "-n", ssh.namespaces["beta"], "link", "set", "eth0")
    with ssh_job("--blacklist-cooldown-range", 1, 2) as running:
        running.wait_for_ranks(2, more=COMMIT_EVERY + 2)
        os.kill(running.pid(0), signal.SIGKILL)
        running.wait_for_ranks(1)
        continued = time.time()
        running.wait_for_ranks(2)
        running.wait_for_epochs(1)
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
        check_samples(running, COMMIT_EVERY, [continued])
