"""Every placement: results, profiles, errors and cleanup of containers, networks and namespaces."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hvscale.launch.cleanup.leftovers import Leftover, clean_up
from hvscale.launch.cleanup.ownership import RunLabel
from hvscale.launch.placements import netns
from tests.conftest import HANG_SECONDS, PROGRAMS, Run, needs_mpich, run_json, wait_until
from tests.system.services import daemon_pid, machine_state, relayed_daemon

FLAVOURS = ("openmpi", "gloo")
WITH_MPICH = (*FLAVOURS, pytest.param("mpich", marks=needs_mpich))
RANKS = 3  # on two nodes: the first has two of them
ROUNDS = 4
BYTES = 2**20
LINK_BITS = 1e9
BIG = 32 * 2**20
BURST = 256 * 1024
SIMULTANEOUS = 6
UNLABELLED = ("shared memory", "session folder")

# Each rank prints its host, sizes, folder and variables; only the host differs between placements.
HOROVOD_PROGRAM = f"""
import json, os, socket, time
import horovod.torch as hvd, torch
hvd.init()
for step in range({ROUNDS}):
    total = hvd.allreduce(torch.full(({BYTES} // 4,), float(hvd.rank() + 1)), op=hvd.Sum, name=f"step.{{step}}")
assert bool((total == sum(range(1, hvd.size() + 1))).all()), total
print(json.dumps({{"rank": hvd.rank(), "size": hvd.size(), "local_size": hvd.local_size(), "host": socket.gethostname(),
                  "here": os.getcwd(), "chosen": os.environ.get("CHOSEN"), "stray": os.environ.get("STRAY")}}), flush=True)
if "HOROVOD_TIMELINE" in os.environ:
    time.sleep(1)  # at shutdown Horovod loses timeline events that it has not yet written
"""

# Horovod's own library without the module `torch`, whose import takes a rank longer than all else.
HOROVOD = """
import horovod
from horovod.common import basics, process_sets
hvd = basics.HorovodBasics(horovod.__file__, "torch", "mpi_lib_v2")
process_sets._setup(hvd)
hvd.init()
"""
# Ranks connect through mpi4py if there is MPI, because it starts faster than Horovod.
INIT = {"openmpi": "import mpi4py.MPI", "mpich": "import mpi4py.MPI", "gloo": HOROVOD}
START_SECONDS = {"openmpi": 6, "mpich": 6, "gloo": 9}  # a rank that does not hang has started within this time
# Code to put before it: rank 1 hangs before it initialises.
HANG_RANK_1 = """
import os, time
if "1" in map(os.environ.get, ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK")):
    time.sleep(1200)
"""

LARGE_ALLREDUCE = f"""
import numpy, time
from mpi4py import MPI
data, total = numpy.ones({BIG}, numpy.uint8), numpy.empty({BIG}, numpy.uint8)
for _ in range(3):
    MPI.COMM_WORLD.Barrier()
    start = time.monotonic()
    MPI.COMM_WORLD.Allreduce(data, total)
    print(time.monotonic() - start, flush=True)
"""


def waiting_program(mpi: str) -> str:
    """Return a program whose ranks connect, print "ready" and wait."""
    return f'import time\n{INIT[mpi]}\nprint("ready", flush=True)\ntime.sleep(1200)\n'


@pytest.fixture(
    params=["docker:rank", "docker:rank on an overlay", "docker:node", "docker:node on an overlay", "netns"]
)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the options of a placement that this machine supports; Docker uses the tests' own
    daemon.
    """
    if request.param == "netns":
        request.getfixturevalue("namespaces")
        return ["--placement", "netns", "--nodes", "2"]
    monkeypatch.setenv("DOCKER_HOST", request.getfixturevalue("docker_host"))
    name, *overlay = request.param.split(" on an ")
    return ["--placement", name, *(["--network", "overlay"] if overlay else [])]


@pytest.fixture
def nothing_left(place: list[str], machine_unchanged: None) -> None:
    """Check that a test in a placement leaves the machine unchanged."""


# Each MPI with each kind of container, each MPI with each network, and each kind of container with
# each network.
PROFILED = (
    *(("docker:rank", "openmpi"), ("docker:node on an overlay", "openmpi")),
    *(("docker:rank on an overlay", "gloo"), ("docker:node", "gloo")),
    pytest.param("docker:rank", "mpich", marks=needs_mpich),
    pytest.param("docker:node on an overlay", "mpich", marks=needs_mpich),
    *(("netns", "openmpi"), ("netns", "gloo"), pytest.param("netns", "mpich", marks=needs_mpich)),
)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(("place", "mpi"), PROFILED, indirect=["place"])
def test_a_horovod_program_is_profiled_in_every_placement(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, place: list[str], mpi: str
) -> None:
    done = hvscale(
        *("profile", "-np", RANKS, "--mpi", mpi, *place, "--run", "job", "--json", "--bins", "512K,1M"),
        *("--env", "CHOSEN", "--", "python", program(HOROVOD_PROGRAM)),
        CHOSEN='a "quoted" b=c',
        STRAY="no",
    )
    assert done.returncode == 0, done.stderr
    (row,) = [
        row for row in json.loads(done.stdout)["rows"] if row["bytes_max"] == BYTES and row["operation"] == "allreduce"
    ]
    assert (row["calls"], row["bytes"]) == (RANKS * ROUNDS, RANKS * ROUNDS * BYTES)

    record = run_json(tmp_path / "job")
    assert (record["state"], record["placement"]) == ("finished", place[1])
    reported = [(library["flavour"], library["ranks"]) for library in record["libraries_reported"]]
    assert reported == ([] if mpi == "gloo" else [(mpi, list(range(RANKS)))])
    nodes = record["nodes"]
    assert [rank for node in nodes for rank in node["ranks"]] == list(range(RANKS))
    assert len(nodes) == (RANKS if place[1] == "docker:rank" else 2)
    assert len({node["address"] for node in nodes}) == len(nodes)
    for number in range(RANKS):
        printed = json.loads((tmp_path / f"job/logs/rank-{number:05d}.log").read_text().splitlines()[-1])
        (node,) = [node for node in nodes if number in node["ranks"]]
        assert (printed["rank"], printed["size"], printed["local_size"]) == (number, RANKS, len(node["ranks"]))
        assert printed["host"] == node["name"] == record["ranks"][number]["host"]
        assert (printed["here"], printed["chosen"], printed["stray"]) == (str(tmp_path), 'a "quoted" b=c', None)


SHARE_CORES = """
import os
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system.resources import share_cores

threads = share_cores(Ranks(), None, pin=True)
print(threads, *sorted(os.sched_getaffinity(0)))
"""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("place", ["docker:rank", "netns"], indirect=True)
def test_ranks_on_the_nodes_of_one_machine_share_its_cores(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, place: list[str]
) -> None:
    done = hvscale("launch", "-np", 2, *place, "--run", "job", "--", "python", program(SHARE_CORES))
    assert done.returncode == 0, done.stderr
    printed = [(tmp_path / f"job/logs/rank-{rank:05d}.log").read_text().splitlines()[-1].split() for rank in range(2)]
    cores = sorted(os.sched_getaffinity(0))
    assert [int(words[0]) for words in printed] == 2 * [max(1, len(cores) // 2)]
    # Ranks are pinned only where each has a core.
    first, second = ({int(word) for word in words[1:]} for words in printed)
    assert (not first & second, first | second) == (len(cores) > 1, set(cores))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("place", ["docker:rank", "netns"], indirect=True)
def test_a_shaped_link_has_the_requested_rate(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, place: list[str]
) -> None:
    words = ("launch", "-np", 2, *place, "--link", "1gbit", "--run", "job")
    done = hvscale(*words, "--", "python", program(LARGE_ALLREDUCE))
    assert done.returncode == 0, done.stderr
    assert run_json(tmp_path / "job")["placement_settings"]["link"] == "1gbit"
    seconds = [float(line) for line in (tmp_path / "job/logs/rank-00000.log").read_text().splitlines()]
    # With any algorithm each of the two ranks receives at least the bytes of the result, so this is
    # a lower bound of the time and does not depend on the machine's speed.
    assert min(seconds) >= (BIG - BURST) * 8 / LINK_BITS


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("place", ["docker:node"], indirect=True)
def test_a_container_has_the_requested_settings(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, place: list[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "photo").write_text("a photo")
    here = tmp_path / "here"
    here.mkdir()
    script = here / "program.py"
    script.write_text(f"""
import os, pathlib
room = os.statvfs("/dev/shm")
print("shm", room.f_blocks * room.f_frsize)
print("data", pathlib.Path("{data}/photo").read_text())
for folder in ("{data}", "{sys.prefix}"):
    try:
        pathlib.Path(folder, "written").touch()
    except OSError as error:
        print("not written", error.strerror)
pathlib.Path("out").write_text("kept")
""")
    options = ("--shm-size", "96m", "--cma", "--mount", data, "--ranks-per-container", 1)
    done = subprocess.run(
        [PROGRAMS / "hvscale", "launch", *place, *map(str, options), "--run", "job", "--", "python", "program.py"],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines()]
    assert lines == [f"shm {96 * 2**20}", "data a photo", *["not written Read-only file system"] * 2]
    assert (here / "out").read_text() == "kept"
    settings = run_json(here / "job")["placement_settings"]
    assert (settings["shm_bytes"], settings["cma_asked"], settings["cma"]) == (96 * 2**20, True, True)
    assert settings["image_id"].startswith("sha256:")


StartWaiting = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start_waiting(tmp_path: Path, place: list[str]) -> Iterator[StartWaiting]:
    """Return a function that starts `hvscale launch` with two ranks in the run folder "job".

    It returns when both ranks have connected and wait.
    """
    started: list[subprocess.Popen[str]] = []

    def start(mpi: str) -> subprocess.Popen[str]:
        started.append(waiting_launcher(tmp_path, place, mpi))
        wait_for_ranks_to_start(tmp_path)
        return started[0]

    yield start
    for launcher in started:
        if launcher.poll() is None:
            launcher.terminate()
            launcher.communicate(timeout=HANG_SECONDS)


def labelled(found: dict[str, Any]) -> list[dict[str, str]]:
    """Return the leftovers that name their run; shared memory, also of other tests, does not."""
    return [leftover for leftover in found["leftovers"] if leftover["kind"] not in UNLABELLED]


def wait_for_ranks_to_start(tmp_path: Path) -> None:
    """Wait until both ranks of the run "job" have printed "ready"."""
    logs = [tmp_path / f"job/logs/rank-{rank:05d}.log" for rank in range(2)]
    wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs))


def waiting_launcher(tmp_path: Path, place: list[str], mpi: str) -> subprocess.Popen[str]:
    (tmp_path / "program.py").write_text(waiting_program(mpi))
    return subprocess.Popen(
        [
            PROGRAMS / "hvscale",
            "launch",
            "-np",
            "2",
            "--mpi",
            mpi,
            *place,
            "--run",
            "job",
            "--",
            "python",
            "program.py",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", ["docker:node on an overlay", "netns"], indirect=True)
@pytest.mark.parametrize("mpi", FLAVOURS)
def test_a_signal_ends_the_run_and_removes_its_resources(
    tmp_path: Path, place: list[str], start_waiting: StartWaiting, mpi: str, number: signal.Signals
) -> None:
    launcher = start_waiting(mpi)
    os.killpg(launcher.pid, number)
    launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 128 + number
    assert run_json(tmp_path / "job")["state"] == "interrupted"


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("place", ["docker:rank", "netns"], indirect=True)
def test_a_signal_before_the_ranks_start_removes_all_resources(tmp_path: Path, place: list[str]) -> None:
    launcher = subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", "-np", "4", *place, "--run", "job", "--", "sleep", "1200"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_until((tmp_path / "job/run.json").exists)
    os.killpg(launcher.pid, signal.SIGINT)
    launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 128 + signal.SIGINT
    assert run_json(tmp_path / "job")["state"] == "interrupted"


@pytest.mark.usefixtures("cleanup_alone", "nothing_left")
@pytest.mark.parametrize("place", ["docker:rank", "docker:node on an overlay", "netns"], indirect=True)
@pytest.mark.parametrize("mpi", FLAVOURS)
def test_cleanup_removes_the_resources_of_a_killed_launcher(
    hvscale: Run, tmp_path: Path, place: list[str], start_waiting: StartWaiting, mpi: str
) -> None:
    launcher = start_waiting(mpi)
    living = json.loads(hvscale("cleanup", "--json").stdout)
    assert labelled(living) == []
    launcher.kill()
    launcher.communicate(timeout=HANG_SECONDS)
    listed = json.loads(hvscale("cleanup", "--dry-run", "--json").stdout)
    assert listed["removed"] is False
    kinds = {leftover["kind"] for leftover in labelled(listed)}
    assert kinds >= ({"namespaces"} if "netns" in place else {"container", "network"})
    assert {leftover["run"] for leftover in labelled(listed)} == {str(tmp_path / "job")}
    removed = hvscale("cleanup")
    assert removed.returncode == 0
    lines = [line for line in removed.stdout.splitlines() if line.endswith(f" of {tmp_path / 'job'}")]
    assert len(lines) == len(labelled(listed))
    assert labelled(json.loads(hvscale("cleanup", "--json").stdout)) == []
    wait_until(lambda: machine_state(None, tmp_path)["processes"] == [])


@pytest.mark.usefixtures("cleanup_alone", "machine_unchanged", "namespaces")
def test_cleanup_removes_the_configuration_of_a_namespace_that_is_gone(hvscale: Run, tmp_path: Path) -> None:
    label = RunLabel.of(tmp_path / "job")
    configuration = netns.CONFIGURATIONS / label.name(0)
    configuration.mkdir(parents=True)
    (configuration / "hosts").touch()
    done = hvscale("cleanup")
    assert done.returncode == 0
    assert f"{label.name('')}*" in done.stdout
    assert not configuration.exists()


@pytest.mark.usefixtures("cleanup_alone", "nothing_left")
@pytest.mark.parametrize("place", ["docker:node on an overlay"], indirect=True)
def test_a_swarm_is_kept_while_a_live_run_uses_it(hvscale: Run, tmp_path: Path, place: list[str]) -> None:
    """The run that created the swarm is killed.

    `cleanup` removes only that run's own resources, and the last run leaves the swarm.
    """

    def start(name: str) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", 'echo ready; until [ -e "$HVSCALE_RUN/go" ]; do sleep 0.1; done']
        started = subprocess.Popen(
            [PROGRAMS / "hvscale", "launch", *place, "--run", name, "--", *command],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        log = tmp_path / name / "logs/rank-00000.log"
        wait_until(lambda: log.exists() and "ready" in log.read_text())
        return started

    creator, user = start("maker"), start("user")
    creator.kill()
    creator.wait(timeout=HANG_SECONDS)
    for options in (["--dry-run"], []):
        listed = labelled(json.loads(hvscale("cleanup", "--json", *options).stdout))
        assert {(leftover["kind"], leftover["run"]) for leftover in listed} == {
            ("container", str(tmp_path / "maker")),
            ("network", str(tmp_path / "maker")),
        }
    (tmp_path / "user/go").touch()
    assert user.wait(timeout=HANG_SECONDS) == 0


@pytest.mark.usefixtures("cleanup_alone", "nothing_left")
@pytest.mark.parametrize("place", ["netns"], indirect=True)
def test_simultaneous_launches_and_cleanup_do_not_interfere(tmp_path: Path, place: list[str]) -> None:
    # Each rank waits until the file `go` exists.
    waiting_ranks = 'touch "$0-$HVSCALE_NAME-$OMPI_COMM_WORLD_RANK"; until [ -e go ]; do sleep 0.1; done'
    found: list[Leftover] = []
    all_started, cleanups = threading.Event(), 0

    def clean_up_repeatedly() -> None:
        nonlocal cleanups
        while not all_started.is_set():
            found.extend(leftover for leftover in clean_up()[0] if leftover.kind not in UNLABELLED)
            cleanups += 1

    cleaner = threading.Thread(target=clean_up_repeatedly)
    jobs = [
        subprocess.Popen(
            [
                *(str(PROGRAMS / "hvscale"), "launch", "-np", "2", *place, "--run", f"job{number}"),
                *("--env", f"HVSCALE_NAME={number}", "--", "sh", "-c", waiting_ranks, "there"),
            ],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(SIMULTANEOUS)
    ]
    cleaner.start()
    try:
        wait_until(lambda: len(list(tmp_path.glob("there-*"))) == 2 * SIMULTANEOUS or any(job.poll() for job in jobs))
    finally:
        all_started.set()
        (tmp_path / "go").touch()
        cleaner.join()
        outputs = [job.communicate(timeout=HANG_SECONDS)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * SIMULTANEOUS, outputs
    assert (found, cleanups > 1) == ([], True)
    first = [run_json(tmp_path / f"job{number}")["nodes"][0]["address"] for number in range(SIMULTANEOUS)]
    assert len(set(first)) == SIMULTANEOUS


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("place", ["docker:rank"], indirect=True)
@pytest.mark.parametrize("mpi", WITH_MPICH)
@pytest.mark.parametrize("how", ["kill", "rm --force"])
def test_a_killed_container_ends_the_job(
    tmp_path: Path, place: list[str], start_waiting: StartWaiting, mpi: str, how: str
) -> None:
    launcher = start_waiting(mpi)
    container = run_json(tmp_path / "job")["nodes"][1]["name"]
    subprocess.run(["docker", *how.split(), container], check=True, capture_output=True)
    _, stderr = launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 3, stderr
    assert re.search(f"hvscale: rank 1 on {container} is lost: its container was (killed|removed)", stderr)
    record = run_json(tmp_path / "job")
    assert (record["state"], record["failed_rank"]) == ("failed", 1)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("place", ["docker:rank"], indirect=True)
def test_the_profiles_of_a_killed_container_are_named_and_the_others_collected(
    tmp_path: Path, place: list[str], program: Callable[[str], Path]
) -> None:
    wait = program(
        "import mpi4py.MPI as mpi, time\nmpi.COMM_WORLD.Barrier()\nprint('ready', flush=True)\ntime.sleep(1200)\n"
    )
    folder = "/dev/shm"  # noqa: S108 - each container's own
    options = ["-np", "2", *place, "--record-dir", folder, "--run", "job"]
    job = subprocess.Popen(
        [PROGRAMS / "hvscale", "profile", *options, "--", "python", str(wait)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for_ranks_to_start(tmp_path)
    container = run_json(tmp_path / "job")["nodes"][1]["name"]
    subprocess.run(["docker", "kill", container], check=True, capture_output=True)
    _, stderr = job.communicate(timeout=HANG_SECONDS)
    assert job.returncode == 3, stderr
    named = f"the profiles of rank 1 stayed on node {container} in {folder}/job-[0-9a-f]+: its container was killed"
    assert re.search(f"hvscale: warning: {named}", stderr), stderr
    assert [path.name for path in (tmp_path / "job/hvprof").iterdir()] == ["rank-00000.hvp"]


@contextmanager
def docker_that_stops_the_daemon(address: str, folder: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """Yield a PATH whose `docker` stops the daemon before `docker exec`, and a file it then
    creates.
    """
    pid, stopped, docker = daemon_pid(address), folder / "stopped", shutil.which("docker")
    front = folder / "front"
    front.mkdir()
    (front / "docker").write_text(f'#!/bin/sh\nkill -STOP {pid}\ntouch {stopped}\nexec {docker} "$@"\n')
    (front / "docker").chmod(0o755)
    try:
        yield {"PATH": f"{front}:{os.environ['PATH']}"}, stopped
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.usefixtures("cleanup_alone", "nothing_left")
@pytest.mark.parametrize("place", ["docker:rank"], indirect=True)
@pytest.mark.parametrize("number", [None, signal.SIGINT])
def test_a_daemon_that_hangs_during_the_start_fails_the_launch(
    hvscale: Run, tmp_path: Path, place: list[str], number: signal.Signals | None
) -> None:
    with docker_that_stops_the_daemon(os.environ["DOCKER_HOST"], tmp_path) as (environment, stopped):
        launcher = subprocess.Popen(
            [PROGRAMS / "hvscale", "launch", "-np", "2", *place, "--run", "job", "--", "true"],
            cwd=tmp_path,
            env={**os.environ, **environment, "HVSCALE_ANSWER_TIMEOUT": "300" if number else "3"},
            stderr=subprocess.PIPE,
            text=True,
        )
        if number:
            wait_until(stopped.exists)
            launcher.send_signal(number)
            launcher.send_signal(number)
        _, stderr = launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == (128 + number if number else 2), stderr
    assert f"hvscale: {'interrupted by SIGINT' if number else 'the Docker daemon at'}" in stderr
    assert "remains; run `hvscale cleanup` when the daemon answers again" in stderr
    record = run_json(tmp_path / "job")
    assert record["state"] == ("interrupted" if number else "failed")
    assert any("hvscale cleanup" in text for text in record["warnings"])
    removed = hvscale("cleanup")
    assert removed.returncode == 0, removed.stderr
    lines = [line for line in removed.stdout.splitlines() if line.endswith(f" of {tmp_path / 'job'}")]
    assert len(lines) == 3, f"two containers and a network, not {removed.stdout}"


def test_a_hung_docker_daemon_is_a_one_line_error(hvscale: Run, docker_host: str) -> None:
    pid = daemon_pid(docker_host)
    os.kill(pid, signal.SIGSTOP)
    try:
        line = error_line(
            hvscale,
            *("--placement", "docker:rank", "--run", "job"),
            DOCKER_HOST=docker_host,
            HVSCALE_ANSWER_TIMEOUT="1",
        )
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"the Docker daemon at {docker_host} has not answered GET /version within 1 s" in line


@pytest.mark.usefixtures("cleanup_alone", "nothing_left")
@pytest.mark.parametrize("place", ["docker:rank"], indirect=True)
def test_losing_the_daemon_while_ranks_run_fails_the_run(
    hvscale: Run, tmp_path: Path, place: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with relayed_daemon(os.environ["DOCKER_HOST"], tmp_path) as (address, relay), monkeypatch.context() as changed:
        changed.setenv("DOCKER_HOST", address)
        launcher = waiting_launcher(tmp_path, place, "openmpi")
        wait_for_ranks_to_start(tmp_path)
        relay.kill()
        _, stderr = launcher.communicate(timeout=HANG_SECONDS)
    assert launcher.returncode == 3, stderr
    assert re.search("hvscale: ranks 0-1 on .* are lost: the Docker daemon no longer answers", stderr), stderr
    assert "remains; run `hvscale cleanup` when the daemon answers again" in stderr
    record = run_json(tmp_path / "job")
    assert (record["state"], record["exit_status"]) == ("failed", 3)
    assert hvscale("cleanup").returncode == 0


@pytest.mark.usefixtures("cleanup_alone", "nothing_left")
@pytest.mark.parametrize("place", ["docker:rank"], indirect=True)
def test_a_daemon_that_hangs_while_ranks_run_does_not_block_the_exit(
    hvscale: Run, tmp_path: Path, place: list[str]
) -> None:
    """Gloo's ranks exit without the daemon, but their `docker exec` processes do not notice."""
    pid, address = daemon_pid(os.environ["DOCKER_HOST"]), os.environ["DOCKER_HOST"]
    go = tmp_path / "job/go"
    (tmp_path / "program.py").write_text(
        f'import pathlib, time\nprint("ready", flush=True)\nwhile not pathlib.Path("{go}").exists():\n    time.sleep(0.1)\n'
    )
    options = ("-np", "2", "--mpi", "gloo", *place, "--run", "job")
    launcher = subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", *options, "--", "python", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "HVSCALE_ANSWER_TIMEOUT": "10"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_ranks_to_start(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    try:
        go.touch()
        _, stderr = launcher.communicate(timeout=HANG_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert launcher.returncode == 3, stderr
    assert "the Docker daemon no longer answers" in stderr
    assert run_json(tmp_path / "job")["exit_status"] == 3
    wait_until(lambda: subprocess.run(["docker", "--host", address, "version"], capture_output=True).returncode == 0)
    assert hvscale("cleanup").returncode == 0


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("place", ["docker:rank", "netns"], indirect=True)
@pytest.mark.parametrize("mpi", WITH_MPICH)
def test_a_rank_that_misses_the_start_timeout_is_named(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, place: list[str], mpi: str
) -> None:
    limit = START_SECONDS[mpi]
    done = hvscale(
        *("launch", "-np", 2, "--mpi", mpi, *place, "--start-timeout", limit, "--run", "job"),
        *("--", "python", program(HANG_RANK_1 + waiting_program(mpi))),
    )
    assert done.returncode == 3
    assert "hvscale: rank 1 on hvscale-" in done.stderr
    assert f"has not called MPI_Init or hvd.init() {limit} s after the start" in done.stderr
    assert run_json(tmp_path / "job")["failed_rank"] == 1


def test_a_start_within_the_timeout_succeeds(hvscale: Run, program: Callable[[str], Path]) -> None:
    limit = START_SECONDS["gloo"]
    script = f"import time\nbegan = time.monotonic()\n{HOROVOD}\ntime.sleep({limit} + 1 - (time.monotonic() - began))\n"
    launch = ("launch", "-np", 2, "--start-timeout", limit, "--set", "cycle_time=100")  # the ranks sleep
    command = ("python", program(script))
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda mpi: hvscale(*launch, "--mpi", mpi, "--run", mpi, "--", *command), FLAVOURS):
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--placement", "moon"],
            "--placement moon: unknown placement. Known: docker:node, docker:rank, host, netns",
        ),
        (["--link", "1gbit"], "--link does not apply to --placement host, only to docker:node, docker:rank, netns"),
        (["--placement", "netns", "--link", "fast"], "--link fast: not a rate"),
        (["--placement", "netns", "--nodes", "5"], "--nodes 5 for -np 1"),
        (["--placement", "netns", "--nodes", "0"], "--nodes"),
        (["--placement", "docker:rank", "--ranks-per-container", "2"], "--ranks-per-container does not apply"),
        (["--placement", "docker:rank", "--shm-size", "big"], "--shm-size big: not a valid size"),
        (["--placement", "docker:rank", "--network", "token-ring"], "--network token-ring"),
    ],
)
def test_an_invalid_placement_is_one_line_and_status_2(hvscale: Run, arguments: list[str], message: str) -> None:
    done = hvscale("launch", *arguments, "--", "true")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def error_line(hvscale: Run, *arguments: object, **environment: str) -> str:
    """Return the one-line error of a launch that fails before the ranks start."""
    done = hvscale("launch", *arguments, "--", "true", **environment)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_a_missing_docker_daemon_is_a_one_line_error(hvscale: Run, docker_host: str, tmp_path: Path) -> None:
    line = error_line(hvscale, "--placement", "docker:rank", "--run", "job", DOCKER_HOST=f"unix://{tmp_path}/nobody")
    assert f"the Docker daemon does not answer at unix://{tmp_path}/nobody: start it" in line
    assert not (tmp_path / "job").exists()


def test_a_missing_docker_image_is_a_one_line_error(hvscale: Run, docker_host: str, tmp_path: Path) -> None:
    other = error_line(hvscale, "--placement", "docker:node", "--image", "nobody/has:this", DOCKER_HOST=docker_host)
    assert "Docker has no image nobody/has:this" in other
    docker = ["docker", "--host", docker_host]
    subprocess.run([*docker, "tag", "hvscale:base", "kept:here"], check=True)
    subprocess.run([*docker, "rmi", "hvscale:base"], check=True, capture_output=True)
    try:
        line = error_line(hvscale, "--placement", "docker:rank", "--run", "job", DOCKER_HOST=docker_host)
    finally:
        subprocess.run([*docker, "tag", "kept:here", "hvscale:base"], check=True)
    assert "build it once with `hvscale image build`" in line
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("rm $(command -v tc)", "executable file not found"),
        (r"printf '#!/bin/sh\necho no right to >&2; exit 2\n' > $(command -v tc)", "no right to"),
    ],
)
def test_a_docker_image_whose_tc_fails_is_a_one_line_error(
    hvscale: Run, docker_host: str, tmp_path: Path, change: str, why: str
) -> None:
    def docker(*words: str) -> None:
        subprocess.run(["docker", "--host", docker_host, *words], check=True, capture_output=True)

    docker("run", "--name", "changed", "hvscale:base", "sh", "-c", change)
    try:
        docker("commit", "changed", "changed:image")
        before = machine_state(docker_host, tmp_path)
        words = ("--placement", "docker:rank", "--link", "1gbit", "--image", "changed:image", "--run", "job")
        line = error_line(hvscale, *words, DOCKER_HOST=docker_host)
        assert machine_state(docker_host, tmp_path) == before
    finally:
        docker("rm", "changed")
    docker("rmi", "changed:image")
    assert line.startswith("hvscale: --link 1gbit: ")
    assert why in line
    assert line.endswith("; the image must contain tc (package iproute2)")


@pytest.mark.usefixtures("cleanup_alone")
@pytest.mark.parametrize("place", ["docker:rank", "netns"], indirect=True)
def test_an_existing_network_is_a_one_line_error_and_is_kept(hvscale: Run, tmp_path: Path, place: list[str]) -> None:
    label = RunLabel.of(tmp_path / "job")
    if "netns" in place:
        name = label.name(0)
        make, remove = ["ip", "netns", "add", name], ["ip", "netns", "del", name]
    else:
        name = label.name("network")
        make, remove = ["docker", "network", "create", name], ["docker", "network", "rm", name]
    subprocess.run(make, check=True, capture_output=True)
    try:
        before = machine_state(os.environ.get("DOCKER_HOST"), tmp_path)
        line = error_line(hvscale, *place[:2], "--run", "job")
        assert machine_state(os.environ.get("DOCKER_HOST"), tmp_path) == before
    finally:
        subprocess.run(remove, check=True, capture_output=True)
    assert f"{name} already exists: run `hvscale cleanup` to remove what a killed run left" in line
    assert run_json(tmp_path / "job")["state"] == "failed"


def stable_state(read_state: Callable[[], dict[str, list[str]]]) -> dict[str, list[str]]:
    """Return the state once it has not changed for a second.

    Docker creates and removes the interfaces of a swarm with a delay.
    """
    states = [read_state()]

    def unchanged() -> bool:
        time.sleep(1)
        states.append(read_state())
        return states[-1] == states[-2]

    wait_until(unchanged)
    return states[-1]


@pytest.mark.usefixtures("cleanup_alone")
def test_an_existing_docker_swarm_is_kept(hvscale: Run, docker_host: str, tmp_path: Path) -> None:
    docker = ["docker", "--host", docker_host]
    subprocess.run([*docker, "swarm", "init", "--advertise-addr", "127.0.0.1"], check=True, capture_output=True)
    try:
        wait_until(lambda: "docker_gwbridge" in machine_state(docker_host, tmp_path)["networks"])
        before = stable_state(lambda: machine_state(docker_host, tmp_path))
        done = hvscale(
            "launch", "--placement", "docker:rank", "--network", "overlay", "--", "true", DOCKER_HOST=docker_host
        )
        assert done.returncode == 0, done.stderr
        assert stable_state(lambda: machine_state(docker_host, tmp_path)) == before
        assert before["swarm"] == ["active"]
    finally:
        subprocess.run([*docker, "swarm", "leave", "--force"], check=True, capture_output=True)
        subprocess.run([*docker, "network", "rm", "docker_gwbridge"], check=True, capture_output=True)
