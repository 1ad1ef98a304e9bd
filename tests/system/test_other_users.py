"""Other users of the machine cannot reach a job's rendezvous or launchers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest

from tests.conftest import HANG_SECONDS, PROGRAMS, needs_mpich, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user takes root")

# Each rank writes the rendezvous address to a file, then connects when the file `go` exists.
RENDEZVOUS_PROGRAM = """
import json, os, pathlib, time
rank = os.environ["HOROVOD_RANK"]
where = [os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{name}"] for name in ("ADDR", "PORT")]
pathlib.Path(f"{rank}.temporary").write_text(json.dumps(where))
pathlib.Path(f"{rank}.temporary").rename(f"{rank}.ready")
while not pathlib.Path("go").exists():
    time.sleep(0.05)
import horovod.torch as hvd, torch
hvd.init()
print("sum", float(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)))
"""
# Sends requests as another user who knows only the port, and prints the HTTP statuses. The last
# request announces a body that it does not send.
UNAUTHORISED_CLIENT = """
import encodings.idna, json, os, sys
from http.client import HTTPConnection
os.setgroups([]); os.setgid(65534); os.setuid(65534)  # user `nobody`; drop root only now because it cannot read this Python
asked = [("PUT", scope + "/" + key, "garbage") for scope in ("global", "local_" + sys.argv[3], "cross_0") for key in "01"]
asked += [("GET", "global/0", None), ("DELETE", "global/0", None), ("DELETE", "global/1", None), ("HEAD", "", None)]
answers = []
for method, path, body in asked:
    server = HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=20)
    server.request(method, "/" + path, body)
    answers.append(server.getresponse().status)
server.putrequest("PUT", "/global/1")
server.putheader("Content-Length", str(2**30))
server.endheaders()
print(json.dumps([*answers, server.getresponse().status]))
"""


def put_with_length(address: str, port: int, path: str, length: str) -> int:
    """Return the HTTP status that answers a PUT before its body is sent."""
    server = HTTPConnection(address, port, timeout=HANG_SECONDS)
    server.putrequest("PUT", path)
    server.putheader("Content-Length", length)
    server.endheaders()
    return server.getresponse().status


@contextmanager
def running_job(folder: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run `hvscale launch` with these arguments; terminate it on exit."""
    with subprocess.Popen(
        [PROGRAMS / "hvscale", "launch", *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        try:
            yield job
        finally:
            job.terminate()


def test_other_users_cannot_use_the_gloo_rendezvous(program: Callable[[str], Path], tmp_path: Path) -> None:
    with running_job(tmp_path, "-np", 2, "--mpi", "gloo", "--", "python", program(RENDEZVOUS_PROGRAM)) as job:
        wait_until(lambda: all((tmp_path / f"{rank}.ready").exists() for rank in range(2)))
        address_and_secret, port = json.loads((tmp_path / "0.ready").read_text())
        host_and_port, _, secret = address_and_secret.partition("/")
        address = host_and_port.partition(":")[0]
        client = subprocess.run(
            [sys.executable, "-I", "-c", UNAUTHORISED_CLIENT, address, port, os.uname().nodename],
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        assert client.returncode == 0, client.stderr
        assert json.loads(client.stdout) == [403] * 11
        # Even with the secret, a body larger than any rank's addresses is rejected.
        path = f"/{secret}:{port}/global/1"
        lengths = {"1073741824": 413, "-1": 400, "many": 400}
        assert {length: put_with_length(address, int(port), path, length) for length in lengths} == lengths
        (tmp_path / "go").touch()
        stdout, stderr = job.communicate(timeout=HANG_SECONDS)
    assert job.returncode == 0, stderr
    assert sorted(stdout.splitlines()) == ["[0] sum 3.0", "[1] sum 3.0"]
    assert "Traceback" not in stderr


# The ranks communicate, spawn another rank if supported, and wait for the file `go`.
COMMUNICATING_PROGRAM = """
import pathlib, sys, time
from mpi4py import MPI
parent, world = MPI.Comm.Get_parent(), MPI.COMM_WORLD
if parent != MPI.COMM_NULL:
    parent.bcast(None, root=0)
    parent.Disconnect()
    sys.exit()
world.allreduce(1)
child = world.Spawn(sys.executable, [__file__], 1)
child.bcast("hello", root=MPI.ROOT if world.rank == 0 else MPI.PROC_NULL)
child.Disconnect()
world.Barrier()
pathlib.Path(f"{world.rank}.ready").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


def listeners(job: psutil.Process) -> dict[str, str]:
    """Return the IP addresses on which the job's processes listen, with their command lines."""
    found: dict[str, str] = {}
    for process in [job, *job.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # the spawned process may be exiting
            command = f"{process.pid}: {' '.join(process.cmdline())}"
            listening = [one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
            # Another test's process may have got the number of one that has exited.
            if process.is_running():
                found |= {address.ip: f"{command}, port {address.port}" for address in listening}
    return found


@pytest.mark.parametrize(
    ("mpi", "transport"),
    [
        ("openmpi", "ob1"),
        pytest.param("mpich", "ucx", marks=needs_mpich),
        pytest.param("mpich", "ofi", marks=needs_mpich),
    ],
)
def test_a_job_on_one_host_listens_on_the_loopback_interface_only(
    program: Callable[[str], Path], tmp_path: Path, mpi: str, transport: str
) -> None:
    words = ("-np", 2, "--mpi", mpi, "--transport", transport, "--", "python", program(COMMUNICATING_PROGRAM))
    with running_job(tmp_path, *words) as job:
        found: dict[str, str] = {}

        def are_ready() -> bool:
            found.update(listeners(psutil.Process(job.pid)))  # also hvscale's own helpers, which end soon
            return all((tmp_path / f"{rank}.ready").exists() for rank in range(2)) or job.poll() is not None

        wait_until(are_ready)
        assert job.poll() is None, job.communicate()
        (tmp_path / "go").touch()
        _, stderr = job.communicate(timeout=HANG_SECONDS)
    assert job.returncode == 0, stderr
    assert found.keys() <= {"127.0.0.1", "::1"}, found
    assert found
