"""The MPI installations for tests of the profiler, C programs compiled for them, and runs."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hvscale.core.run_folder import Host, Library, RunFolder, RunRecord
from hvscale.profiling import preload_environment
from tests.conftest import DIRECT_START, MPICH_PREFIX

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 100


@dataclass(frozen=True)
class Mpi:
    """An installed MPI and how to start ranks with it."""

    flavour: str
    bin: Path
    options: tuple[str, ...]
    folder: Path  # for compiled programs
    compiler: str = "mpicc"
    large_counts: bool = False  # has MPI 4's functions with large counts

    def compile(self, name: str, programs: Path = PROGRAMS) -> Path:
        program = self.folder / name
        if not program.exists():
            source = str(programs / f"{name}.c")
            subprocess.run(
                [str(self.bin / self.compiler), "-O1", "-Wall", "-pthread", "-o", str(program), source], check=True
            )
        return program

    def command(self, np: int, command: list[str]) -> list[str]:
        return [str(self.bin / "mpirun"), *self.options, "-np", str(np), *command]

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment of mpirun, which passes it on to the ranks on one host."""
        return {**os.environ, **DIRECT_START, "PATH": f"{self.bin}:{os.environ['PATH']}", **more}

    def start(self, np: int, command: list[str], more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(np, command),
            env=self.environment(more),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def preload(self, run: RunFolder) -> dict[str, str]:
        return preload_environment(run, large_counts=self.large_counts)

    def record(self, run: RunFolder, np: int, command: list[str], **more: str) -> None:
        """Runs the command on np ranks, recorded into `run`, and requires success."""
        done = self.start(np, command, {**self.preload(run), **more})
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def open_mpi(tmp_path_factory: pytest.TempPathFactory) -> Mpi:
    binaries = Path(sys.executable).parent
    if not (binaries / "ompi_info").exists():
        pytest.skip("Open MPI is not installed in this environment")
    options = ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
    return Mpi("Open MPI", binaries, options, tmp_path_factory.mktemp("open-mpi"))


@pytest.fixture(scope="session")
def mpich(tmp_path_factory: pytest.TempPathFactory) -> Mpi:
    """MPICH in a separate environment, without Open MPI."""
    programs = MPICH_PREFIX / "bin"
    if not (programs / "mpicc").exists():
        pytest.skip("there is no MPICH environment: make setup-dev MPI=mpich")
    return Mpi("MPICH", programs, (), tmp_path_factory.mktemp("mpich"), large_counts=True)


@pytest.fixture(scope="session")
def mpi_abi(mpich: Mpi) -> Mpi:
    """The ABI of the MPI 5.0 standard, which MPICH also provides."""
    folder = mpich.folder / "mpi-abi"
    folder.mkdir()
    return replace(mpich, flavour="MPI ABI", folder=folder, compiler="mpicc_abi")


@pytest.fixture(params=["open_mpi", "mpich", "mpi_abi"])
def any_mpi(request: pytest.FixtureRequest) -> Mpi:
    found: Mpi = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["mpich", "mpi_abi"])
def mpi_with_large_counts(request: pytest.FixtureRequest) -> Mpi:
    found: Mpi = request.getfixturevalue(request.param)
    return found


MakeRun = Callable[..., RunFolder]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(np: int, flavour: str = "Open MPI") -> RunFolder:
        run = RunFolder.create(tmp_path / "run")
        run.write(
            RunRecord(
                command=["program"],
                np=np,
                library=Library(flavour=flavour, version="1"),
                host=Host(name="here", kernel="k", cpu="c", cores=2, memory_bytes=1),
                working_directory="/",
                started_at=datetime.now(UTC),
            )
        )
        return run

    return make


@pytest.fixture(params=["full", "read-only", "missing"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder in which no profile can be created."""
    folder = tmp_path / "unwritable"
    if request.param == "missing":
        yield folder
        return
    folder.mkdir()
    if os.geteuid() != 0 and request.param == "read-only":
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    option = "size=1m" if request.param == "full" else "ro"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
