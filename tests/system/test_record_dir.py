"""Profiles on the nodes' own disks (--record-dir): collected after the job, however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvscale.core.run_folder import RunFolder
from hvscale.launch.job import Node, Nodes
from hvscale.profiling.analyze.breakdown import breakdown
from hvscale.profiling.read.profile_file import ProfileFile
from hvscale.studies.node_local_profiles import NodeLocalProfiles
from tests.conftest import HANG_SECONDS, Run, run_json, start_job, wait_until
from tests.system.services import SshHosts, machine_state

CALLS = 40
REDUCE = f"""
import os, signal, sys, time
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
own, total = np.ones(1 << 10, np.float32), np.empty(1 << 10, np.float32)
for call in range({CALLS}):
    world.Allreduce(own, total)
after = sys.argv[1] if len(sys.argv) > 1 else ""
if after == "die" and world.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if after:
    print("waiting", flush=True)
    time.sleep(1200)
"""

MAPS = """
import mmap, sys
with open(sys.argv[1]) as stream:
    mapped = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    print("mapped", flush=True)
    input()
"""


@pytest.fixture
def local(tmp_path: Path) -> Path:
    folder = tmp_path / "local"
    folder.mkdir()
    return folder


def calls_by_rank(run: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in breakdown(RunFolder(run)).rank_rows:
        found[row.rank] = found.get(row.rank, 0) + row.calls
    return found


@pytest.mark.parametrize(
    ("place", "record"),
    [(["--placement", "host"], "counters"), (["--placement", "netns", "--nodes", "2"], "calls")],
)
def test_profiles_are_collected(
    hvscale: Run,
    program: Callable[[str], Path],
    tmp_path: Path,
    local: Path,
    place: list[str],
    record: str,
    request: Any,
) -> None:
    if "netns" in place:
        request.getfixturevalue("namespaces")
    options = ("-np", 4, *place, "--record", record, "--record-dir", local, "--run", "job")
    done = hvscale("profile", *options, "--", "python", program(REDUCE))
    assert done.returncode == 0, done.stderr
    assert list(local.iterdir()) == []
    assert calls_by_rank(tmp_path / "job") == dict.fromkeys(range(4), CALLS)
    record_of_run = run_json(tmp_path / "job")
    assert record_of_run["launch"]["record_dir"] == str(local)
    assert record_of_run["rank_environment"]["HVPROF_DIRECTORY"].startswith(f"{local}/job-")
    for path in (tmp_path / "job/hvprof").iterdir():
        header = ProfileFile(path).header
        assert (header.capacity > 0) == (record == "calls")
        assert path.stat().st_size < 2 << 20  # only the used part travelled
        assert path.stat().st_blocks * 512 < (2 << 20 if record == "calls" else 300 << 10)


def test_a_killed_rank_s_profile_is_collected(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, local: Path
) -> None:
    options = ("-np", 2, "--record-dir", local, "--run", "job")
    done = hvscale("profile", *options, "--", "python", program(REDUCE), "die")
    assert done.returncode == 3, done.stderr
    assert list(local.iterdir()) == []
    assert calls_by_rank(tmp_path / "job") == {0: CALLS, 1: CALLS}


@pytest.mark.usefixtures("namespaces")
def test_an_interrupted_job_s_profiles_are_collected(
    program: Callable[[str], Path], tmp_path: Path, local: Path, hvscale: Run
) -> None:
    options = ("profile", "-np", 2, "--placement", "netns", "--record-dir", local, "--run", "job")
    job = start_job(tmp_path, *options, "--", "python", program(REDUCE), "wait", prints="waiting")
    running = hvscale("breakdown", "job")
    assert "are on their nodes in " in running.stderr
    os.killpg(job.pid, signal.SIGINT)
    _, stderr = job.communicate(timeout=HANG_SECONDS)
    assert job.returncode == 128 + signal.SIGINT, stderr
    assert list(local.iterdir()) == []
    assert calls_by_rank(tmp_path / "job") == {0: CALLS, 1: CALLS}


def kill_hvscale(job: "subprocess.Popen[str]", folder: Path) -> None:
    """Kill it, as its machine's lack of memory would; its ranks die with their launcher."""
    job.kill()
    job.communicate(timeout=HANG_SECONDS)
    wait_until(lambda: machine_state(None, folder)["processes"] == [])


def kept_in(run: Path) -> Path:
    return Path(run_json(run)["rank_environment"]["HVPROF_DIRECTORY"])


@pytest.mark.usefixtures("cleanup_alone")
@pytest.mark.parametrize("place", ["host", "netns"])
def test_cleanup_collects_what_a_killed_hvscale_left(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, local: Path, place: str, request: Any
) -> None:
    if place == "netns":
        request.getfixturevalue("namespaces")
    options = ("profile", "-np", 2, "--placement", place, "--record-dir", local, "--run", "job")
    job = start_job(tmp_path, *options, "--", "python", program(REDUCE), "wait", prints="waiting")
    folder, run = kept_in(tmp_path / "job"), tmp_path / "job"
    refused = hvscale("cleanup", "job")
    assert (refused.returncode, "is running on" in refused.stderr) == (2, True)
    kill_hvscale(job, tmp_path)
    assert f"collect them with `hvscale cleanup {run}`" in hvscale("breakdown", run).stderr
    assert f"found profiles {folder} of {run}" in hvscale("cleanup", "--dry-run", "job").stdout
    with subprocess.Popen(
        [sys.executable, "-c", MAPS, folder / "rank-00001.hvp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        done = hvscale("cleanup", "job")
        writer.kill()
    (line,) = [line for line in done.stderr.splitlines() if str(folder) in line]
    assert "the profiles of ranks 0-1 stayed on node" in line
    assert line.endswith(f" in {folder}: process {writer.pid} still writes there: end it first")
    assert calls_by_rank(run) == {}
    assert f"collected profiles {folder} of {run}" in hvscale("cleanup", "job").stdout.splitlines()
    assert list(local.iterdir()) == []
    assert calls_by_rank(run) == {0: CALLS, 1: CALLS}
    assert str(folder) not in hvscale("cleanup", "job").stdout


@pytest.mark.usefixtures("cleanup_alone")
def test_a_node_that_cannot_be_reached_is_named_until_it_is_back(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, local: Path, ssh: SshHosts
) -> None:
    options = ("profile", "-np", 2, "--hosts", "alpha:1,beta:1", "--record-dir", local, "--run", "job")
    command = ("--", "python", program(REDUCE), "wait")
    job = start_job(tmp_path, *options, *command, prints="waiting", HVSCALE_SSH=ssh.ssh)
    folder = kept_in(tmp_path / "job")
    kill_hvscale(job, tmp_path)
    configuration = Path(ssh.ssh.split()[-1]).read_text()
    (tmp_path / "ssh_config").write_text(configuration.replace(ssh.addresses["beta"], ssh.addresses["nobody"]))
    done = hvscale("cleanup", "job", HVSCALE_SSH=f"ssh -F {tmp_path}/ssh_config")
    stayed = f"the profiles of rank 1 stayed on node beta in {folder}: it no longer answers by ssh"
    assert f"hvscale: warning: {tmp_path}/job: {stayed}" in done.stderr.splitlines()
    assert calls_by_rank(tmp_path / "job") == {0: CALLS}
    assert f"hvscale: warning: no profile of rank 1: {stayed}" in hvscale("breakdown", "job").stderr.splitlines()
    assert f"collected profiles {folder}" in hvscale("cleanup", "job", HVSCALE_SSH=ssh.ssh).stdout
    assert calls_by_rank(tmp_path / "job") == {0: CALLS, 1: CALLS}
    assert list(local.iterdir()) == []


@pytest.mark.usefixtures("cleanup_alone")
@pytest.mark.parametrize(("placement", "containers"), [("docker:rank", 2), ("docker:node", 1)])
def test_cleanup_collects_from_docker_containers_before_it_removes_them(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, docker_host: str, placement: str, containers: int
) -> None:
    """Each container has a temporary folder of its own."""
    options = ("profile", "-np", 2, "--placement", placement, "--record-dir", "/tmp", "--run", "job")  # noqa: S108
    command = ("--", "python", program(REDUCE), "wait")
    job = start_job(tmp_path, *options, *command, prints="waiting", DOCKER_HOST=docker_host)
    folder = kept_in(tmp_path / "job")
    assert not folder.exists()
    job.kill()
    job.communicate(timeout=HANG_SECONDS)
    wait_until(lambda: machine_state(None, tmp_path)["processes"] == [])
    done = hvscale("cleanup", DOCKER_HOST=docker_host)
    assert f"collected profiles {folder} of {tmp_path}/job" in done.stdout.splitlines(), done.stderr
    assert calls_by_rank(tmp_path / "job") == {0: CALLS, 1: CALLS}
    assert sum(line.startswith("removed container ") for line in done.stdout.splitlines()) == containers


def test_a_folder_that_does_not_exist_is_refused(hvscale: Run, tmp_path: Path) -> None:
    done = hvscale("profile", "-np", 2, "--record-dir", tmp_path / "none", "--run", "job", "--", "true")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"hvscale: --record-dir {tmp_path}/none: No such file or directory, on node ")
    assert "(ranks 0-1): choose a folder that every node has" in line


def test_a_full_folder_is_refused(hvscale: Run, small_disk: Callable[..., Path]) -> None:
    disk = small_disk("1m")
    done = hvscale("profile", "-np", 2, "--record-dir", disk, "--run", "job", "--", "true")
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"hvscale: --record-dir {disk}: node ")
    assert "(ranks 0-1) has 1.0 MiB left, and the profiles need at least 4.6 MiB" in line
    assert list(disk.iterdir()) == []


def test_rings_fit_on_the_nodes_disk(
    hvscale: Run, program: Callable[[str], Path], small_disk: Callable[..., Path]
) -> None:
    disk = small_disk("40m")
    done = hvscale("profile", "-np", 2, "--record-dir", disk, "--run", "job", "--", "python", program(REDUCE))
    assert done.returncode == 0, done.stderr
    assert "(8 MiB), because node " in done.stderr
    assert list(disk.iterdir()) == []


def test_what_cannot_be_collected_stays_and_is_named(
    hvscale: Run, program: Callable[[str], Path], local: Path, small_disk: Callable[..., Path]
) -> None:
    """The run folder's disk takes the profile of one rank of two, which have 1.9 MB of records."""
    disk = small_disk("4m")
    calls = 30_000
    reduce = program(REDUCE.replace(f"range({CALLS})", f"range({calls})"))
    done = hvscale("profile", "-np", 2, "--record-dir", local, "--run", disk / "job", "--", "python", reduce)
    assert done.returncode == 4, done.stderr
    (folder,) = local.iterdir()
    why = f"cannot be copied to {disk}/job/hvprof: No space left on device"
    stayed = f"the profiles of rank 1 stayed on node {os.uname().nodename} in {folder}: {why}"
    assert f"hvscale: warning: {stayed}" in done.stderr.splitlines()
    assert [path.name for path in folder.iterdir()] == ["rank-00001.hvp"]
    done = hvscale("breakdown", disk / "job")
    assert f"hvscale: warning: no profile of rank 1: {stayed}" in done.stderr.splitlines()
    assert calls_by_rank(disk / "job") == {0: calls}


def test_ranks_on_a_full_disk_are_named_in_one_line(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, small_disk: Callable[..., Path]
) -> None:
    """The ranks 1 to 3 write to a disk without space; rank 0 and the job are not affected."""
    disk = small_disk("1m")
    odd = 'test "$OMPI_COMM_WORLD_RANK" = 0 || export HVPROF_DIRECTORY="$1"; exec python "$2"'
    command = ("sh", "-c", odd, "sh", disk, program(REDUCE))
    done = hvscale("profile", "-np", 4, "--env", "HVPROF_MIB=4", "--run", "job", "--", *command)
    assert done.returncode == 4, done.stderr
    named = [line for line in done.stderr.splitlines() if "no profile of" in line and "warning" in line]
    cause = f"cannot create a profile of 5.3 MiB in {disk} (No space left on device)"
    assert named == [f"hvscale: warning: no profile of ranks 1-3: {cause}"]
    assert calls_by_rank(tmp_path / "job") == {0: CALLS}
    assert run_json(tmp_path / "job")["state"] == "finished"


def test_a_lost_node_takes_its_profiles_with_it(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, local: Path
) -> None:
    """Two nodes with profiles of a real job; one no longer answers when they are collected."""
    recorded = hvscale("profile", "-np", 4, "--run", "recorded", "--", "python", program(REDUCE))
    assert recorded.returncode == 0, recorded.stderr
    (tmp_path / "job").mkdir()
    (tmp_path / "job/run.json").write_bytes((tmp_path / "recorded/run.json").read_bytes())
    run = RunFolder(tmp_path / "job")
    run.hvprof.mkdir()
    record = run.read()
    there = Nodes((Node("n1", 2), Node("n2", 2, agent=("env",))))
    profiles = NodeLocalProfiles(local)
    folder = Path(profiles.prepare(run, record, there)["HVPROF_DIRECTORY"])
    for path in (tmp_path / "recorded/hvprof").iterdir():
        path.rename(folder / path.name)
    (folder / ".rank-00000.Xy12").touch()  # what a killed process leaves
    lost = Nodes((Node("n1", 2), Node("n2", 2, agent=("sh", "-c", "echo no route to n2 >&2; exit 255"))))
    (line,) = profiles.collect(run, record, lost)
    assert line == f"the profiles of ranks 2-3 stayed on node n2 in {folder}: no route to n2"
    assert sorted(path.name for path in folder.iterdir()) == ["rank-00002.hvp", "rank-00003.hvp"]
    record.warnings.append(line)
    run.write(record)
    table = breakdown(run)
    assert table.ranks == [0, 1]
    assert table.incomplete == f"no profile of ranks 2-3: {line}"
    assert profiles.collect(run, record, there) == []
    assert breakdown(run).incomplete is None
    assert list(local.iterdir()) == []


def test_gloo_has_nothing_to_record_elsewhere(tmp_path: Path, local: Path, hvscale: Run) -> None:
    done = hvscale("profile", "-np", 2, "--mpi", "gloo", "--record-dir", local, "--run", "job", "--", "true")
    assert done.returncode == 2
    assert "--record-dir does not apply to --mpi gloo" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "job").exists()
    assert list(local.iterdir()) == []
