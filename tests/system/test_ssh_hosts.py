"""Ranks on other hosts over ssh: real servers, each in a network namespace."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import HANG_SECONDS, PROGRAMS, Run, kill_below, needs_mpich, run_json, wait_until
from tests.system.services import SshHosts, machine_state
from tests.system.test_placements import (
    BYTES,
    FLAVOURS,
    HOROVOD_PROGRAM,
    ROUNDS,
    WITH_MPICH,
    wait_for_ranks_to_start,
    waiting_program,
)

ErrorLine = Callable[..., str]


@pytest.fixture
def error_line(hvscale: Run, ssh: SshHosts, tmp_path: Path) -> ErrorLine:
    """Return a function that launches on these hosts and returns the one-line error.

    It also checks that no process was started.
    """

    def launch(*arguments: object) -> str:
        done = hvscale("launch", *arguments, "--run", "job", "--", "true", HVSCALE_SSH=ssh.ssh)
        assert done.returncode == 2, done.stderr
        assert machine_state(None, tmp_path)["processes"] == []
        (line,) = done.stderr.splitlines()
        return line

    return launch


# hvscale itself reads both options, so each needs only one MPI and Gloo.
@pytest.mark.parametrize(
    ("option", "mpi"),
    [("--hosts", "openmpi"), ("--hostfile", "gloo"), pytest.param("--hostfile", "mpich", marks=needs_mpich)],
)
def test_a_horovod_program_is_profiled_on_hosts(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, ssh: SshHosts, mpi: str, option: str
) -> None:
    (tmp_path / "hosts").write_text("# two hosts\nalpha slots=2\n\nbeta:2  # the second\n")
    hosts = ["--hosts", "alpha:2,beta:2"] if option == "--hosts" else ["--hostfile", "hosts"]
    done = hvscale(
        *("profile", "-np", 3, "--mpi", mpi, *hosts, "--run", "job", "--json", "--bins", "512K,1M"),
        *("--env", "CHOSEN", "--env", "OMPI_MCA_mpi_yield_when_idle=1", "--", "python", program(HOROVOD_PROGRAM)),
        HVSCALE_SSH=ssh.ssh,
        CHOSEN='a "quoted" $HOME; b=c',
    )
    assert done.returncode == 0, done.stderr
    (row,) = [
        row for row in json.loads(done.stdout)["rows"] if row["bytes_max"] == BYTES and row["operation"] == "allreduce"
    ]
    assert (row["calls"], row["bytes"]) == (3 * ROUNDS, 3 * ROUNDS * BYTES)
    record = run_json(tmp_path / "job")
    assert record["placement"] == "ssh"
    assert [(node["name"], node["address"], node["ranks"]) for node in record["nodes"]] == [
        ("alpha", ssh.addresses["alpha"], [0, 1]),
        ("beta", ssh.addresses["beta"], [2]),
    ]
    for rank, host in enumerate(["alpha", "alpha", "beta"]):
        printed = json.loads((tmp_path / f"job/logs/rank-{rank:05d}.log").read_text().splitlines()[-1])
        assert (printed["host"], printed["here"]) == (ssh.namespaces[host], str(tmp_path))
        assert printed["chosen"] == 'a "quoted" $HOME; b=c'
    assert machine_state(None, tmp_path)["processes"] == []


def test_profiles_on_the_hosts_disks_are_collected(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, ssh: SshHosts
) -> None:
    (tmp_path / "local").mkdir()
    barrier = program("import mpi4py.MPI as mpi\nmpi.COMM_WORLD.Barrier()\n")
    job = ("-np", 3, "--hosts", "alpha:2,beta:2", "--record-dir", tmp_path / "local", "--run", "job", "--json")
    done = hvscale("profile", *job, "--", "python", barrier, HVSCALE_SSH=ssh.ssh)
    assert done.returncode == 0, done.stderr
    assert [row["calls"] for row in json.loads(done.stdout)["rows"]] == [3]
    assert len(list((tmp_path / "job/hvprof").iterdir())) == 3
    assert list((tmp_path / "local").iterdir()) == []


@pytest.mark.parametrize("mpi", FLAVOURS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_no_process_on_the_hosts(
    program: Callable[[str], Path],
    tmp_path: Path,
    ssh: SshHosts,
    mpi: str,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HVSCALE_SSH", ssh.ssh)
    options = ["-np", "2", "--mpi", mpi, "--hosts", "alpha,beta", "--run", "job"]
    launcher = subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", *options, "--", "python", program(waiting_program(mpi))],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    logs = [tmp_path / f"job/logs/rank-{rank:05d}.log" for rank in range(2)]
    wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs))
    launcher.send_signal(number)
    launcher.wait(timeout=HANG_SECONDS)
    wait_until(lambda: machine_state(None, tmp_path)["processes"] == [])


@pytest.mark.parametrize("mpi", WITH_MPICH)
def test_a_host_that_stops_answering_while_ranks_run_is_named(
    program: Callable[[str], Path], tmp_path: Path, ssh: SshHosts, mpi: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVSCALE_SSH", f"{ssh.ssh} -o ServerAliveInterval=1 -o ServerAliveCountMax=2")
    options = ["-np", "2", "--mpi", mpi, "--hosts", "alpha,beta", "--run", "job"]
    launcher = subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", *options, "--", "python", program(waiting_program(mpi))],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_ranks_to_start(tmp_path)
    link = ["ip", "-n", ssh.namespaces["beta"], "link", "set", "dev", "eth0"]
    subprocess.run([*link, "down"], check=True)
    try:
        _, stderr = launcher.communicate(timeout=HANG_SECONDS)
    finally:
        subprocess.run([*link, "up"], check=True)
        kill_below(tmp_path)  # hvscale cannot reach the ranks of a lost host
    assert launcher.returncode == 3, stderr
    assert "hvscale: rank 1 on beta is lost: it no longer answers by ssh" in stderr
    record = run_json(tmp_path / "job")
    assert (record["state"], record["failed_rank"]) == ("failed", 1)


@pytest.mark.parametrize(("limits", "status"), [("ulimit -S -n 16", 0), ("ulimit -n 64", 2)])
def test_the_limit_of_open_files_is_raised_as_far_as_allowed(
    tmp_path: Path, ssh: SshHosts, monkeypatch: pytest.MonkeyPatch, limits: str, status: int
) -> None:
    """As on hundreds of hosts with a limit of 1024."""
    monkeypatch.setenv("HVSCALE_SSH", ssh.ssh)
    words = [str(PROGRAMS / "hvscale"), "launch", "-np", "2", "--hosts", "alpha,beta", "--", "true"]
    limited = ["sh", "-c", f'{limits}; exec "$@"', "sh", *words]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == status, done.stderr
    if status:
        (line,) = done.stderr.splitlines()
        assert "open files at a time, and the hard limit is 64 (`ulimit -H -n`): use fewer ranks or nodes, or " in line


def test_a_host_that_does_not_answer_is_named(error_line: ErrorLine) -> None:
    line = error_line("-np", 2, "--hosts", "alpha:1,nobody:1")
    assert "host nobody does not answer by ssh" in line
    assert "`ssh nobody true` must work without a password" in line


def test_a_host_without_the_environment_is_named(error_line: ErrorLine) -> None:
    line = error_line("-np", 2, "--hosts", "alpha:1,bare:1")
    assert "host bare cannot run" in line
    assert "the environment must be at the same path on every host" in line


def test_hosts_that_cannot_reach_each_other_are_named(error_line: ErrorLine, ssh: SshHosts) -> None:
    route = [f"{ssh.addresses['beta']}/32"]
    route_command = ["ip", "-n", ssh.namespaces["alpha"], "route"]
    subprocess.run([*route_command, "add", "unreachable", *route], check=True)
    try:
        line = error_line("-np", 2, "--hosts", "alpha:1,beta:1")
    finally:
        subprocess.run([*route_command, "del", "unreachable", *route], check=True)
    assert f"host alpha cannot reach beta ({ssh.addresses['beta']})" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", 5, "--hosts", "alpha:2,beta:2"], "-np 5, but the hosts have 4 slots"),
        (["--hosts", "alpha:two"], "alpha:two is not a host"),
        (["--hosts", "-oProxyCommand=x"], "is not a host"),
        (["--hostfile", "none"], "--hostfile none: No such file"),
        (["--hosts", "alpha", "--hostfile", "none"], "cannot be combined"),
        (["--placement", "ssh"], "--placement ssh needs hosts"),
        (["--placement", "netns", "--hosts", "alpha"], "--hosts does not apply to --placement netns"),
    ],
)
def test_invalid_hosts_are_a_one_line_error(error_line: ErrorLine, arguments: list[object], message: str) -> None:
    assert message in error_line(*arguments)


def test_a_run_folder_that_a_host_cannot_see_is_an_error(hvscale: Run, ssh: SshHosts) -> None:
    """The folder is on a file system that is mounted only in this process's mount namespace."""
    hidden = Path("/run/netns-test-hidden")
    hidden.mkdir(exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "none", hidden], check=True
    )  # the ssh servers' mount namespaces already exist
    try:
        done = hvscale("launch", "--hosts", "alpha", "--run", hidden / "job", "--", "true", HVSCALE_SSH=ssh.ssh)
    finally:
        subprocess.run(["umount", hidden], check=True)
    assert done.returncode == 2
    assert f"host alpha does not see {hidden}/job: use --run with a folder that all hosts share" in done.stderr


def test_gloo_on_a_host_with_an_ipv6_address_is_an_error(hvscale: Run, tmp_path: Path) -> None:
    """The program takes ssh's place: it runs the command here, as a server at ::1 would."""
    local = tmp_path / "ssh"
    local.write_text(
        '#!/bin/sh\nwhile [ "$1" = -o ]; do shift 2; done\nshift\n'
        'export SSH_CONNECTION="::1 40000 ::1 22"\nexec /bin/sh -c "$*"\n'
    )
    local.chmod(0o755)
    job = ("--mpi", "gloo", "--hosts", "one", "--run", "job")
    done = hvscale("launch", *job, "--", "true", HVSCALE_SSH=str(local))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "hvscale: --mpi gloo: one answers at the IPv6 address ::1, and Horovod's rendezvous uses IPv4"
    )
    assert "HVSCALE_SSH='ssh -4'" in line
    assert run_json(tmp_path / "job")["state"] == "failed"
