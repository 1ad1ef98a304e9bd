"""What every test starts from: the installed command, run as a user runs it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

# A busy machine fails no test, and where nobody looks a test fails for what was changed: CI takes
# the same examples each time.
settings.register_profile("hvscale", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("hvscale")

PROGRAMS = Path(sys.prefix) / "bin"
# The environment of `make setup MPI=mpich`, beside this one.
MPICH_PREFIX = Path(sys.prefix).with_name(".venv-mpich")
needs_mpich = pytest.mark.skipif(
    not (MPICH_PREFIX / "bin" / "hvscale").exists(), reason="no MPICH environment here: make setup-dev MPI=mpich"
)
Run = Callable[..., subprocess.CompletedProcess[str]]
# They look at, and change, what the whole machine has of networks, containers and jobs: one after
# another.
OF_THE_MACHINE = {
    f"tests/system/test_{name}.py"
    for name in ("compare_placements", "doctor", "placements", "slurm", "ssh_hosts", "tune_places", "written_tables")
}

# What starts real ranks or compiles C outside tests/system: `make check` leaves it out.
RANKS_FIXTURES = {"any_mpi", "mpi_abi", "mpi_with_large_counts", "mpich", "open_mpi", "two_ranks"}
RANKS_FILES = {
    "bench/test_applications.py",
    "bench/test_sums.py",
    "bench/test_torch_group.py",
    "comm_tuning/test_broadcast.py",
    "comm_tuning/test_told.py",
    "launch/test_reported_library.py",
    "profiling/test_nccl.py",
    "profiling/test_sanitizers.py",
    "trainer/test_alone.py",
    "trainer/test_horovod_flags.py",
    "trainer/test_two_ranks.py",
}


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests run in one process, and those of the machine in one too."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "the machine" if file in OF_THE_MACHINE else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark with `ranks` what starts real ranks or compiles C."""
    tests = Path(__file__).parent
    for item in items:
        file = item.path.relative_to(tests).as_posix()
        fixtures = set(getattr(item, "fixturenames", ()))
        if file in RANKS_FILES or file.startswith(("native/", "setup/", "system/")) or fixtures & RANKS_FIXTURES:
            item.add_marker(pytest.mark.ranks)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.fixture
def hvscale(tmp_path: Path) -> Run:
    """`hvscale("launch", "-np", "2", ...)` in a fresh folder; never raises for an exit status."""

    def run(*arguments: object, timeout: float = 180, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAMS / "hvscale", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a Python program into the test's folder and gives its path."""

    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def run_json(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "run.json").read_text())
    return record


def env_asked(record: dict[str, Any]) -> dict[str, str]:
    """The variables that a run.json says were asked for, "(hidden)" where the value is not
    recorded.
    """
    pairs = (request.partition("=") for request in record["launch"].get("env", []))
    return {name: value if equals else "(hidden)" for name, equals, value in pairs}


def knobs_asked(record: dict[str, Any]) -> dict[str, str]:
    return dict(request.split("=", 1) for request in record["launch"].get("set", []))


def processes_below(folder: Path) -> list[psutil.Process]:
    """Every living process of a run inside the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            run = process.environ().get("HVSCALE_RUN", "")
            if process.status() != psutil.STATUS_ZOMBIE and Path(run).is_relative_to(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(happened: Callable[[], bool], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded images are not to stay on the machine."""
    monkeypatch.setenv("HVSCALE_DECODED", str(tmp_path / "decoded"))
