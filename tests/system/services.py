"""Docker, ssh and Slurm services for the placement tests, and the state that runs must restore."""

import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

from hvscale.launch.cleanup import shared_memory
from hvscale.launch.cleanup.ownership import PREFIX, RUN, RunLabel, machine_lock
from hvscale.launch.placements import netns
from tests.conftest import PROGRAMS, wait_until

DAEMON_SECONDS = 60
BUILD_SECONDS = 900
SSHD = "/usr/sbin/sshd"  # sshd must be started by its full path
# It relays half-closed streams too: `docker exec` closes one direction first.
RELAY = """
import asyncio, sys
async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
async def relay(reader, writer):
    there, to_there = await asyncio.open_unix_connection(sys.argv[2])
    await asyncio.gather(copy(reader, to_there), copy(there, writer), return_exceptions=True)
    to_there.close()
    writer.close()
async def serve():
    await (await asyncio.start_unix_server(relay, sys.argv[1])).serve_forever()
asyncio.run(serve())
"""
ADMIN_PATH = "/usr/sbin:/sbin"
DOCKER_INTERFACES = ("br-", "docker", "veth", "vx-")
CLEANUP_LOCK = Path("/run/lock/hvscale-tests-cleanup.lock")


def why_no_namespaces() -> str | None:
    """Return why this machine cannot make network namespaces, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "not installed: ip and tc (package iproute2)"
    name = f"hvtest-{os.getpid()}"
    with machine_lock(netns.LOCK):  # no other test sees it
        if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
            return "this machine cannot make a network namespace"
        subprocess.run(["ip", "netns", "del", name], check=True)
    return None


@contextmanager
def cleanup_lock(exclusive: bool) -> Iterator[None]:
    """Hold the lock between tests that leave something for `hvscale cleanup` and all others that
    look at the whole machine; it is shared between the latter.
    """
    with CLEANUP_LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


def running_daemon() -> str | None:
    """Return the address of a running Docker daemon, or None.

    A second daemon would remove its firewall rules.
    """
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if shutil.which("docker") is None:
        return None
    answer = subprocess.run(["docker", "--host", address, "version"], capture_output=True)
    return None if answer.returncode else address


def why_no_docker() -> str | None:
    """Return why this machine cannot start a Docker daemon, or None."""
    if os.geteuid() != 0:
        return "starting a Docker daemon needs root"
    missing = [
        program for program in ("dockerd", "docker", "debootstrap", "iptables-save") if shutil.which(program) is None
    ]
    return f"not installed: {', '.join(missing)}" if missing else None


@contextmanager
def restored_firewall() -> Iterator[None]:
    """Restore the firewall afterwards: stale rules would rewrite the packets of the next daemon."""
    before = subprocess.run(["iptables-save"], capture_output=True, check=True).stdout
    yield
    for table in ("filter", "nat"):
        subprocess.run(["iptables", "--table", table, "--flush"], check=True)
        subprocess.run(["iptables", "--table", table, "--delete-chain"], check=True)
    subprocess.run(["iptables", "--policy", "FORWARD", "ACCEPT"], check=True)
    subprocess.run(["iptables-restore"], input=before, check=True)


@contextmanager
def docker_daemon(folder: Path) -> Iterator[str]:
    """Run a daemon with all its files in `folder`; yield its address."""
    address = f"unix://{folder / 'docker.sock'}"
    own_folders = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid"]
    # No default bridge, and networks in a range of their own.
    network = ["--bridge", "none", "--default-address-pool", "base=10.214.0.0/16,size=24"]
    with restored_firewall(), (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            ["dockerd", "--host", address, *map(str, own_folders), *network],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + DAEMON_SECONDS
            while subprocess.run(["docker", "--host", address, "version"], capture_output=True).returncode:
                log_end = (folder / "log").read_text(errors="replace")[-2000:]
                assert daemon.poll() is None, f"dockerd failed to start: {log_end}"
                assert time.monotonic() < deadline, f"dockerd does not answer: {log_end}"
                time.sleep(0.2)
            yield address
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=DAEMON_SECONDS)


def why_no_podman() -> str | None:
    """Return why this machine cannot start Podman's service, or None."""
    if os.geteuid() != 0:
        return "building the image for Podman needs root"
    missing = [
        program
        for program in ("podman", "docker", "debootstrap", "iptables-save", "netavark")
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/lib/podman") is None
    ]
    return f"not installed: {', '.join(missing)}" if missing else None


@contextmanager
def own_podman(folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield Podman's command line with all its files in `folder`, and its environment."""
    # crun refuses a mix of both versions of cgroups. Podman's own limits are the highest possible,
    # which a root without CAP_SYS_RESOURCE may not set.
    mixed = Path("/sys/fs/cgroup/unified").exists() and shutil.which("runc", path=f"{os.environ['PATH']}:{ADMIN_PATH}")
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = f'default_ulimits = ["nofile={files}:{files}", "nproc=20000:20000"]'
    runtime = 'runtime = "runc"' if mixed else ""
    configuration = folder / "containers.conf"
    configuration.write_text(f"[engine]\n{runtime}\n[containers]\n{limits}\n")
    with tempfile.TemporaryDirectory() as run:
        # Podman refuses a --runroot of more than 50 characters.
        own_folders = ["--root", folder / "root", "--runroot", run, "--network-config-dir", folder / "networks"]
        try:
            yield ["podman", *map(str, own_folders)], {**os.environ, "CONTAINERS_CONF": str(configuration)}
        finally:
            # Podman's monitor of an exec stays for five minutes, and its clean-up then mounts the
            # storage again.
            for monitor in _processes_naming(folder / "root"):
                with suppress(psutil.NoSuchProcess):
                    monitor.kill()
            # Podman mounts its storage on itself, sometimes twice.
            while _succeeds(["umount", "--lazy", str(folder / "root" / "overlay")]):
                pass


def _processes_naming(folder: Path) -> list[psutil.Process]:
    """Return the processes whose command lines name a file of this folder."""
    running = psutil.process_iter(["cmdline"])
    return [one for one in running if any(word.startswith(f"{folder}/") for word in one.info["cmdline"] or [])]


@contextmanager
def podman_service(folder: Path) -> Iterator[str]:
    """Run a service with all its files in `folder`; yield its address."""
    address = f"unix://{folder / 'podman.sock'}"
    with restored_firewall(), own_podman(folder) as (podman, environment), (folder / "log").open("wb") as log:
        service = subprocess.Popen(
            [*podman, "system", "service", "--time", "0", address],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_until(partial(_succeeds, ["docker", "--host", address, "version"]))
            yield address
        finally:
            service.terminate()
            service.wait(timeout=DAEMON_SECONDS)


def daemon_pid(address: str) -> int:
    """Return the process id of the tests' own daemon; skip the test if it is another daemon."""
    file = Path(address.removeprefix("unix://")).with_name("pid")
    if not file.is_file():
        pytest.skip("the Docker daemon here is not the tests' own")
    return int(file.read_text())


@contextmanager
def relayed_daemon(address: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield a second address of the daemon and its relay process; kill it to disconnect."""
    relay = folder / "relay.sock"
    with subprocess.Popen(
        [sys.executable, "-c", RELAY, str(relay), address.removeprefix("unix://")], start_new_session=True
    ) as process:
        try:
            wait_until(relay.exists)
            yield f"unix://{relay}", process
        finally:
            process.kill()


def build_image(address: str) -> None:
    done = subprocess.run(
        [PROGRAMS / "hvscale", "image", "build"],
        env={**os.environ, "DOCKER_HOST": address},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
    )
    assert done.returncode == 0, done.stderr


def why_no_ssh() -> str | None:
    """Return why this machine cannot run ssh hosts, or None. Each is a namespace with an sshd."""
    missing = [program for program in ("ssh", "ssh-keygen") if shutil.which(program) is None]
    if shutil.which(SSHD) is None:
        missing.append("sshd")
    return f"not installed: {', '.join(missing)}" if missing else why_no_namespaces()


@dataclass(frozen=True)
class SshHosts:
    """Hosts that HVSCALE_SSH reaches: `alpha`, `beta`, and `bare` without hvscale's environment.

    `nobody` has an address but no host.
    """

    ssh: str
    namespaces: dict[str, str]
    addresses: dict[str, str]


@contextmanager
def ssh_hosts(folder: Path) -> Iterator[SshHosts]:
    names = ("alpha", "beta", "bare")
    with netns.network(RunLabel.of(folder), len(names)) as (subnet, namespaces):
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        server = {
            "HostKey": folder / "host",
            "AuthorizedKeysFile": folder / "user.pub",
            "StrictModes": "no",
            "PidFile": "none",
            "UsePAM": "no",
            "PermitRootLogin": "yes",
        }
        (folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in server.items()))
        addresses = dict(zip(names, map(str, list(subnet.hosts())[1:]), strict=False)) | {"nobody": str(subnet[99])}
        client = {
            "IdentityFile": folder / "user",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
        }
        (folder / "ssh_config").write_text(
            "".join(f"Host {name}\n HostName {address}\n" for name, address in addresses.items())
            + "Host *\n"
            + "".join(f" {name} {value}\n" for name, value in client.items())
        )
        # Each host has its own host name; `bare` has an empty folder in place of the environment.
        hide = 'mount -t tmpfs none "$2"'
        starting = 'echo "$1" >/proc/sys/kernel/hostname && {} && exec "$0" -D -e -f "$3"'
        servers = [
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", namespace, "unshare", "--uts", "/bin/sh", "-c"),
                    starting.format(hide if name == "bare" else "true"),
                    *(SSHD, namespace, sys.prefix, str(folder / "sshd_config")),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for name, namespace in zip(names, namespaces, strict=True)
        ]
        ssh = f"ssh -F {folder / 'ssh_config'}"
        for name in names:
            wait_until(partial(_succeeds, [*ssh.split(), name, "true"]))
        try:
            yield SshHosts(ssh, dict(zip(names, namespaces, strict=True)), addresses)
        finally:
            for server_process in servers:
                server_process.kill()
                server_process.wait()


def why_no_slurm() -> str | None:
    """Return why this machine cannot start a Slurm cluster, or None."""
    missing = [
        program for program in ("munged", "slurmctld", "slurmd") if shutil.which(program, path=ADMIN_PATH) is None
    ]
    if missing:
        return f"not installed: {', '.join(missing)} (packages slurm-wlm, munge)"
    return None if os.geteuid() == 0 else "starting Slurm's daemons needs root"


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Path]:
    """Run four nodes, n1 to n4, on this machine; yield Slurm's configuration file."""
    nodes, here, started = [f"n{number}" for number in range(1, 5)], socket.gethostname(), time.time()
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {' '.join(nodes)}\n")
    configuration = folder / "slurm.conf"
    settings = {
        "ClusterName": "hvtest",
        "SlurmctldHost": f"{here}(127.0.0.1)",
        "SlurmctldPort": free_port(),
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool/%n",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd-%n.pid",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "SlurmdParameters": "config_overrides",  # believe the CPUs below, which the machine lacks
        "KillWait": 5,
    }
    configuration.write_text(
        "".join(f"{name}={value}\n" for name, value in settings.items())
        + "".join(
            f"NodeName={node} NodeHostname={here} NodeAddr=127.0.0.1 Port={free_port()} CPUs=16\n" for node in nodes
        )
        + "PartitionName=all Nodes=ALL Default=YES State=UP\n"
    )
    munge = ["munged", "--foreground", "--force", "--key-file", str(key), "--socket", f"{folder}/munge/socket"]
    munge += [
        "--pid-file",
        f"{folder}/munge/pid",
        "--log-file",
        f"{folder}/munge/log",
        "--seed-file",
        f"{folder}/munge/seed",
    ]
    with_host_name = (
        'mount --bind "$1" /etc/hosts && echo "$2" >/proc/sys/kernel/hostname && exec "$0" -D -N "$2" -f "$3"'
    )
    daemon = ["unshare", "--uts", "--mount", "/bin/sh", "-c", with_host_name]
    commands = [
        munge,
        ["slurmctld", "-D", "-f", str(configuration)],
        *([*daemon, "slurmd", str(hosts), node, str(configuration)] for node in nodes),
    ]
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:{ADMIN_PATH}", "SLURM_CONF": str(configuration)}
    with (folder / "log").open("wb") as log:
        daemons = []
        for words in commands:
            daemons.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True))
            if words is munge:
                wait_until((folder / "munge/socket").exists)
    try:
        idle = ["sinfo", "--noheader", "--Node", "--format", "%T"]
        wait_until(
            lambda: subprocess.run(idle, env=environment, capture_output=True, text=True).stdout.split() == ["idle"] * 4
        )
        yield configuration
    finally:
        for process in reversed(daemons):
            process.terminate()
            process.wait(timeout=DAEMON_SECONDS)
        kill_slurm_steps(configuration)
        shared_memory.remove_unused(Path(tempfile.gettempdir()), started)  # what lost nodes left


def kill_slurm_steps(configuration: Path) -> None:
    """Kill the processes that watch steps; some try to reach a stopped controller for ever."""
    variable = f"SLURM_CONF={configuration}".encode()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            # Its title overwrites the beginning of the environment, at which psutil stops reading.
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if process.name() == "slurmstepd" and variable in environment:
                process.kill()


def kill_slurm_node(node: str, configuration: Path) -> None:
    """Kill the node's daemon and everything that it started, as a power failure would.

    They share its UTS namespace. Its files stay, because the nodes share one file system.
    """
    processes = list(psutil.process_iter())
    space = uts_namespace(slurm_daemon(node, configuration).pid)
    for process in processes:
        if uts_namespace(process.pid) == space:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def slurm_daemon(node: str, configuration: Path) -> psutil.Process:
    words = ["slurmd", "-D", "-N", node, "-f", str(configuration)]
    (found,) = (process for process in psutil.process_iter() if words_of(process) == words)
    return found


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def uts_namespace(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/uts").stat().st_ino
    except OSError:  # it has ended
        return None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def machine_state(address: str | None, runs: Path) -> dict[str, list[str]]:
    """Return the processes of runs below `runs`, and all namespaces, interfaces, containers and
    networks except those labelled as a run elsewhere.

    What lost its label counts. Docker's interfaces count if `address` names its daemon.
    """
    found = {
        "processes": [str(process.pid) for process in psutil.process_iter() if run_of(process).startswith(str(runs))]
    }
    if shutil.which("ip"):
        found |= network_state(runs, docker=address is not None)
    if address:
        docker = ("docker", "--host", address)
        found["containers"] = sorted(output(*docker, "ps", "--all", "--format", "{{.Names}}").split())
        found["networks"] = sorted(output(*docker, "network", "ls", "--format", "{{.Name}}").split())
        found["swarm"] = output(*docker, "info", "--format", "{{.Swarm.LocalNodeState}}").split()
    return found


def network_state(runs: Path, docker: bool) -> dict[str, list[str]]:
    """Return the namespaces, their configurations and the interfaces, as `machine_state` does."""
    # Runs create namespaces under this lock, and remove the label after everything else.
    with machine_lock(netns.LOCK):
        labels = {name: alias for name, alias in netns.uplinks().items() if f" {RUN}=" in alias}
        elsewhere = {name for name, alias in labels.items() if f"{runs}/" not in alias}
        spaces, links = netns.namespaces(), json.loads(output("ip", "-json", "link"))
        folders = [path.name for path in netns.CONFIGURATIONS.iterdir()] if netns.CONFIGURATIONS.is_dir() else []

    def counts(space: str) -> bool:
        return not (space.startswith(f"{PREFIX}-") and netns.uplink_name(space) in elsewhere)

    interfaces = {link["ifname"] for link in links} - elsewhere
    return {
        "configured namespaces": sorted(filter(counts, folders)),
        "namespaces": sorted(filter(counts, spaces)),
        "interfaces": sorted(name for name in interfaces if docker or not name.startswith(DOCKER_INTERFACES)),
    }


def output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def run_of(process: psutil.Process) -> str:
    """Return the run folder of a living process, "" if it belongs to no run."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.environ().get("HVSCALE_RUN", "")
    except psutil.Error:
        return ""


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0
