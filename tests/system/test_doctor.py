"""`hvscale doctor`: its findings agree with this machine."""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hvscale.cli import doctor
from hvscale.comm_tuning.collectives import broadcast as own_broadcast
from tests.conftest import HANG_SECONDS, MPICH_PREFIX, PROGRAMS, needs_mpich

SHM = "/dev/shm"  # noqa: S108


@pytest.fixture(scope="module")
def checks() -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [PROGRAMS / "hvscale", "doctor", "--json"], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "hvscale/doctor/2"
    return {check["name"]: check for check in document["checks"]}


def test_the_environments_mpi_and_its_transports(checks: dict[str, dict[str, Any]]) -> None:
    version = subprocess.check_output([PROGRAMS / "mpirun", "--version"], text=True).split()[3]
    assert f"openmpi {version} ({PROGRAMS / 'mpirun'}; transports: cm, ob1, ucx)" in checks["MPI"]["found"]
    linked = checks["Horovod's MPI"]
    assert linked["good"]
    assert f"{PROGRAMS.parent.resolve() / 'lib/libmpi.so.40'}" in linked["found"]
    assert "not CUDA-aware: GPU tensors" in linked["found"]


@needs_mpich
def test_the_mpich_environment(checks: dict[str, dict[str, Any]]) -> None:
    text = subprocess.check_output([MPICH_PREFIX / "bin/mpichversion"], text=True)
    version = text.split()[2]
    assert f"mpich {version} ({MPICH_PREFIX / 'bin/mpiexec.hydra'}; transports: ucx, ofi)" in checks["MPI"]["found"]
    assert f"(mpich {version}; transport here: ucx" in checks["Horovod's MPI"]["found"]


def test_the_broadcast_works(checks: dict[str, dict[str, Any]]) -> None:
    assert checks["broadcast"]["good"]
    assert checks["broadcast"]["found"] == f"{own_broadcast.library_path()} (tried on openmpi)"


@pytest.mark.parametrize(
    ("source", "why"), [("int hvbcast_broadcast(void) { return 0; }", "wrong data"), (None, "file too short")]
)
def test_a_broken_broadcast_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, why: str
) -> None:
    library = tmp_path / "libhvbcast.so"
    library.touch()
    if source is not None:
        words = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
        subprocess.run(words, input=source, text=True, check=True)
    monkeypatch.setattr(own_broadcast, "library_path", lambda: library)
    check = doctor.broadcast()
    assert not check.good
    assert why in check.found
    assert check.fix == "run `make setup`"


def test_memory_limits_and_cma_of_the_machine(checks: dict[str, dict[str, Any]]) -> None:
    size = os.statvfs(SHM)
    assert checks[SHM]["found"] == f"{size.f_blocks * size.f_frsize / 2**20:.0f} MiB"
    assert checks[SHM]["good"] == (size.f_blocks * size.f_frsize >= 256 * 2**20)
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    found = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit / 2**20:.0f} MiB"
    assert checks["locked memory"]["found"].startswith(found)
    assert checks["CMA"]["good"] == ("each other's memory directly" in checks["CMA"]["found"])


def test_small_shared_memory_and_a_silent_daemon_are_problems_with_a_fix() -> None:
    """In a separate mount namespace, with the size that Docker sets by default."""
    small = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" doctor --json'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", small, PROGRAMS / "hvscale"],
        env={**os.environ, "DOCKER_HOST": "unix:///nobody"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    if done.returncode != 0 and not done.stdout:
        pytest.skip("no mount namespace can be made here: it takes root")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert (checks[SHM]["good"], checks[SHM]["found"]) == (False, "64 MiB")
    assert "--shm-size" in checks[SHM]["fix"]
    if shutil.which("docker"):
        assert "does not answer" in checks["placement docker:node"]["fix"]


def placements_found(**environment: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [PROGRAMS / "hvscale", "doctor", "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return {
        check["name"].removeprefix("placement "): check
        for check in json.loads(done.stdout)["checks"]
        if check["name"].startswith("placement ")
    }


def test_missing_tools_are_listed_for_each_placement(tmp_path: Path) -> None:
    for program in ("python", "hvscale"):
        (tmp_path / program).symlink_to(PROGRAMS / program)
    found = placements_found(PATH=str(tmp_path), HVSCALE_SSH="no-such-ssh", DOCKER_HOST="unix:///nobody")
    assert set(found) == {"host", "netns", "docker:rank", "docker:node", "ssh", "slurm"}
    assert found["host"]["good"]
    assert "no docker and no podman in PATH: install one" in found["docker:rank"]["fix"]
    assert "apt install openssh-client" in found["ssh"]["fix"]
    assert not found["slurm"]["good"]
    if os.geteuid() != 0:
        assert "needs root" in found["netns"]["fix"]


def test_available_docker_and_namespaces_are_found(docker_host: str, namespaces: None) -> None:
    found = placements_found(DOCKER_HOST=docker_host)
    version = subprocess.check_output(
        ["docker", "--host", docker_host, "version", "--format", "{{.Server.Version}}"], text=True
    ).strip()
    for name in ("docker:rank", "docker:node"):
        assert found[name]["found"] == f"Docker {version} at {docker_host}, image hvscale:base"
    assert found["netns"]["found"].startswith("root, ")


def test_a_running_slurm_cluster_is_found(slurm: Path) -> None:
    found = placements_found(SLURM_CONF=str(slurm))["slurm"]
    assert found["good"]
    assert ", 4 nodes, outside an allocation" in found["found"]
