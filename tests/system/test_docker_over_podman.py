"""The Docker placements over Podman's service, which answers the same requests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvscale.launch.supervision.programs import ANSWER_VARIABLE
from tests.conftest import Run, run_json
from tests.system import services

# Each rank prints its host name and the sum over all ranks.
SUM = """
import socket
from mpi4py import MPI
print(socket.gethostname(), MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1), flush=True)
"""


@pytest.fixture(scope="module")
def podman_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Podman service with the image."""
    if reason := services.why_no_podman():
        pytest.skip(reason)
    with services.podman_service(tmp_path_factory.mktemp("podman")) as address:
        services.build_image(address)
        os.environ[ANSWER_VARIABLE] = "180"  # Podman starts a process for each request
        yield address
        del os.environ[ANSWER_VARIABLE]


def links_without(folder: Path, left_out: str) -> Path:
    """Make a folder of links to all programs in PATH but one."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else []:
            if program.name != left_out and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


@pytest.mark.parametrize(("placement", "containers"), [("docker:rank", 4), ("docker:node", 2)])
def test_ranks_in_podmans_containers(
    hvscale: Run, podman_host: str, tmp_path: Path, placement: str, containers: int
) -> None:
    (tmp_path / "sum.py").write_text(SUM)
    before = services.machine_state(podman_host, tmp_path)
    words = ["launch", "-np", 4, "--placement", placement, "--link", "1gbit", "--run", "job", "--", "python", "sum.py"]
    done = hvscale(*words, DOCKER_HOST=podman_host)
    assert done.returncode == 0, done.stderr
    printed = [line.split() for line in done.stdout.splitlines()]
    assert sorted(words[0] for words in printed) == ["[0]", "[1]", "[2]", "[3]"]
    assert {words[2] for words in printed} == {"10"}
    assert len({words[1] for words in printed}) == containers
    assert len(run_json(tmp_path / "job")["nodes"]) == containers
    assert services.machine_state(podman_host, tmp_path) == before


def test_podmans_own_tool_replaces_dockers(
    hvscale: Run, podman_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with Podman need not have the command `docker`."""
    (tmp_path / "sum.py").write_text(SUM)
    monkeypatch.setenv("PATH", str(links_without(tmp_path / "bin", "docker")))
    words = ["launch", "-np", 2, "--placement", "docker:rank", "--run", "job", "--", "python", "sum.py"]
    done = hvscale(*words, DOCKER_HOST=podman_host)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[2] for line in done.stdout.splitlines()) == ["3", "3"]


def test_a_failing_rank_is_reported_and_its_container_removed(hvscale: Run, podman_host: str, tmp_path: Path) -> None:
    before = services.machine_state(podman_host, tmp_path)
    words = ["launch", "-np", 2, "--placement", "docker:rank", "--run", "job", "--", "sh", "-c", "exit 7"]
    done = hvscale(*words, DOCKER_HOST=podman_host)
    assert done.returncode == 3
    assert "status 7" in done.stderr
    assert services.machine_state(podman_host, tmp_path) == before


def test_podman_has_no_overlay_networks(hvscale: Run, podman_host: str) -> None:
    words = ["launch", "-np", 2, "--placement", "docker:rank", "--network", "overlay", "--", "true"]
    done = hvscale(*words, DOCKER_HOST=podman_host)
    assert done.returncode == 2
    assert "--network overlay needs Docker Swarm" in done.stderr.splitlines()[-1]
    assert services.output("docker", "--host", podman_host, "ps", "--all", "--quiet") == ""
