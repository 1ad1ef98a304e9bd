"""What the tests of placements need of the machine: a Docker daemon of their own, and a count of everything a run could leave behind."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.conftest import PROGRAMS

DAEMON_SECONDS = 60
BUILD_SECONDS = 900


def why_no_namespaces() -> str | None:
    """Why network namespaces cannot be had here; None when they can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "no ip and tc (package iproute2)"
    name = f"hvtest-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return "this machine makes no network namespace"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


def running_daemon() -> str | None:
    """The address of a Docker daemon that this user can use already. A second one beside it would undo its firewall rules."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if shutil.which("docker") is None:
        return None
    asked = subprocess.run(["docker", "--host", address, "version"], capture_output=True)
    return None if asked.returncode else address


def why_no_docker() -> str | None:
    """Why no Docker daemon can be started here; None when one can."""
    if os.geteuid() != 0:
        return "starting a Docker daemon takes root"
    missing = [
        program for program in ("dockerd", "docker", "debootstrap", "iptables-save") if shutil.which(program) is None
    ]
    return f"not installed: {', '.join(missing)}" if missing else None


@contextmanager
def firewall_as_it_was() -> Iterator[None]:
    """A daemon leaves its rules behind, and a stale one, for a network that the next daemon uses too, rewrites its addresses."""
    before = subprocess.run(["iptables-save"], capture_output=True, check=True).stdout
    yield
    for table in ("filter", "nat"):
        subprocess.run(["iptables", "--table", table, "--flush"], check=True)
        subprocess.run(["iptables", "--table", table, "--delete-chain"], check=True)
    subprocess.run(["iptables", "--policy", "FORWARD", "ACCEPT"], check=True)
    subprocess.run(["iptables-restore"], input=before, check=True)


@contextmanager
def docker_daemon(folder: Path) -> Iterator[str]:
    """A daemon that keeps everything in `folder`; gives its address."""
    address = f"unix://{folder / 'docker.sock'}"
    own_folders = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid"]
    # No default bridge, and networks where nobody else's are.
    network = ["--bridge", "none", "--default-address-pool", "base=10.214.0.0/16,size=24"]
    with firewall_as_it_was(), (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            ["dockerd", "--host", address, *map(str, own_folders), *network],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + DAEMON_SECONDS
            while subprocess.run(["docker", "--host", address, "version"], capture_output=True).returncode:
                said = (folder / "log").read_text(errors="replace")[-2000:]
                assert daemon.poll() is None, f"dockerd does not start: {said}"
                assert time.monotonic() < deadline, f"dockerd does not answer: {said}"
                time.sleep(0.2)
            yield address
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=DAEMON_SECONDS)


def build_image(address: str) -> None:
    done = subprocess.run(
        [PROGRAMS / "hvscale", "image", "build"],
        env={**os.environ, "DOCKER_HOST": address},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
    )
    assert done.returncode == 0, done.stderr


def everything_there(address: str | None, runs: Path) -> dict[str, list[str]]:
    """What runs with folders under `runs` make outside them, by kind; networks of anybody, because a run's own may lose its name."""
    folders = Path("/etc/netns")
    found = {
        "processes": [str(process.pid) for process in psutil.process_iter() if run_of(process).startswith(str(runs))],
        "configured namespaces": sorted(path.name for path in folders.iterdir()) if folders.is_dir() else [],
    }
    if shutil.which("ip"):
        found["namespaces"] = [entry["name"] for entry in json.loads(output("ip", "-json", "netns", "list") or "[]")]
        found["interfaces"] = sorted(entry["ifname"] for entry in json.loads(output("ip", "-json", "link")))
    if address:
        docker = ("docker", "--host", address)
        found["containers"] = sorted(output(*docker, "ps", "--all", "--format", "{{.Names}}").split())
        found["networks"] = sorted(output(*docker, "network", "ls", "--format", "{{.Name}}").split())
        found["swarm"] = output(*docker, "info", "--format", "{{.Swarm.LocalNodeState}}").split()
    return found


def output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def run_of(process: psutil.Process) -> str:
    """The run that a living process belongs to, empty for none."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.environ().get("HVSCALE_RUN", "")
    except psutil.Error:
        return ""
