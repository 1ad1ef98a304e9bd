"""Fixtures and helpers of all tests: run the installed command, read run folders, wait."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests import preloaded

# No deadline, because machines may be busy. CI uses the same examples each time, so that a failure
# comes from the change under test.
settings.register_profile("hvscale", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("hvscale")

PROGRAMS = Path(sys.prefix) / "bin"
# The environment of `make setup MPI=mpich`, beside this one.
MPICH_PREFIX = Path(sys.prefix).with_name(".venv-mpich")
needs_mpich = pytest.mark.skipif(
    not (MPICH_PREFIX / "bin" / "hvscale").exists(), reason="no MPICH environment here: make setup-dev MPI=mpich"
)
Run = Callable[..., subprocess.CompletedProcess[str]]
# For ranks that a test starts without `hvscale launch`. Other tests add and remove interfaces at
# the same time, and an MPI that uses one as it vanishes aborts, or rejects a peer's messages.
# libfabric has a variable for each of its providers, and MPICH may choose `sockets` over `tcp`.
LOOPBACK_ONLY = {
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "UCX_TLS": "^tcp",
    "FI_TCP_IFACE": "lo",
    "FI_SOCKETS_IFACE": "lo",
}
# The tests keep all cores busy: a rank that waits leaves its core to the others.
YIELD_WHEN_IDLE = {"OMPI_MCA_mpi_yield_when_idle": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
DIRECT_START = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "^ofi",  # a rank sleeps for a second when it closes this component
    **LOOPBACK_ONLY,
    **YIELD_WHEN_IDLE,
}
# The same for `hvscale launch` and the commands with its options.
YIELDS = tuple(word for name, value in YIELD_WHEN_IDLE.items() for word in ("--env", f"{name}={value}"))
# Threads of PyTorch and OpenBLAS that wait for another sleep at once. By default they keep a core
# busy for a while, which the thread for which they wait may need: the tests keep all cores busy.
os.environ |= {"GOMP_SPINCOUNT": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}
# A shell that starts the tests in the background has these ignored, and every command would inherit
# that and miss the tests' signals.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# A command that takes longer hangs. A machine with much other work needs several minutes for some.
# Programs of tests that are meant to hang sleep twice as long.
HANG_SECONDS = 600
# The first line of programs that use Horovod and compile nothing. It leaves out PyTorch's compiler,
# whose import by torch.optim more than doubles a rank's start, and operators for tensors without
# data (torch._meta_registrations), a quarter of the rest; their module would set the metaclass. No
# garbage is collected among the 300000 objects of PyTorch's modules.
QUICK_START = "; ".join(
    (
        "import gc, sys, types",
        "gc.disable()",
        "sys.modules['torch._meta_registrations'] = types.ModuleType('torch._meta_registrations')",
        "import horovod.torch, torch",
        "torch._C._set_generator_metaclass(torch._custom_class_base.CustomClassBaseMeta)",
        "compiler = types.SimpleNamespace(disable=lambda function, *_, **__: function, graph_break=lambda: None)",
        "torch._dynamo = sys.modules['torch._dynamo'] = compiler",
        "gc.freeze()",
        "gc.enable()",
    )
)
# Services that a machine has once: one worker runs all tests of each, so that it starts once, and
# Podman's containers do not start and end beside Docker's. The name of such a test, its file or
# parameters contains one of these words: the scheduler knows only names.
SERVICES = {"docker": "docker", "podman": "docker", "slurm": "slurm"}
SERVICE_OF_FIXTURE = {"docker_host": "docker", "podman_host": "docker", "slurm": "slurm"}

# Tests outside tests/system that start ranks or compile C: `make check` skips them.
RANKS_FIXTURES = {"any_mpi", "mpi_abi", "mpi_with_large_counts", "mpich", "open_mpi", "two_ranks"}
RANKS_FILES = {
    "bench/test_applications.py",
    "bench/test_sums.py",
    "bench/test_torch_group.py",
    "comm_tuning/test_broadcast.py",
    "comm_tuning/test_installed.py",
    "comm_tuning/test_mpi_t.py",
    "launch/test_reported_library.py",
    "profiling/test_nccl.py",
    "profiling/test_sanitizers.py",
    "trainer/test_horovod_flags.py",
    "trainer/test_single_process.py",
    "trainer/test_two_ranks.py",
}


class GroupScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Run each file's tests in one process, and all tests of a service in one process.

    Groups start in the order of the items, not by their number of tests.
    """

    def schedule(self) -> None:
        self.config.option.loadscopereorder = False
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def group(nodeid: str) -> str:
    """Return the service that a system test names, otherwise its file."""
    named = [service for word, service in SERVICES.items() if word in nodeid and nodeid.startswith("tests/system/")]
    return named[0] if named else nodeid.partition("::")[0]


def check_group(item: pytest.Item) -> None:
    """Raise UsageError if the test uses a service and does not name it."""
    # `place` and `placement` start a service for some of their parameters, such as docker:rank.
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    places = [str(parameters.get(name)) for name in ("place", "placement")]
    used = {SERVICE_OF_FIXTURE.get(fixture) for fixture in getattr(item, "fixturenames", ())}
    used |= {SERVICES.get(place.partition(":")[0]) for place in places}
    for service in sorted(filter(None, used)):
        if group(item.nodeid) != service:
            raise pytest.UsageError(f"{item.nodeid} uses {service}: put the word {service} in its name")


def start_order(item: pytest.Item) -> int:
    """Return the place of a test's group: the longest first, so that no worker idles at the end."""
    if group(item.nodeid) in SERVICES.values():
        return 0
    if item.nodeid.startswith("tests/system/"):
        return 1
    return 2 if item.get_closest_marker("ranks") else 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start ranks or compile C with `ranks`, and those with the fixture `hvscale`
    with `commands`; put the longest groups first.
    """
    tests = Path(__file__).parent
    missing = [name for name in sorted(RANKS_FILES) if not (tests / name).exists()]
    assert not missing, f"RANKS_FILES names a missing file: {missing}"
    for item in items:
        check_group(item)
        file = item.path.relative_to(tests).as_posix()
        fixtures = set(getattr(item, "fixturenames", ()))
        if file in RANKS_FILES or file.startswith(("native/", "setup/", "system/")) or fixtures & RANKS_FIXTURES:
            item.add_marker(pytest.mark.ranks)
        if "hvscale" in fixtures:
            item.add_marker(pytest.mark.commands)
    first: dict[str, int] = {}
    for item in items:
        first[group(item.nodeid)] = min(start_order(item), first.get(group(item.nodeid), 3))
    items.sort(key=lambda item: first[group(item.nodeid)])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long the tests of each folder took, added up over the workers."""
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if isinstance(report, pytest.TestReport):
            folder = str(Path(report.nodeid.partition("::")[0]).parent)
            seconds[folder] += report.duration
            tests[folder] += report.when == "call"
    if len(seconds) > 1:
        terminalreporter.section("seconds by folder, added up over the workers")
        for folder, total in sorted(seconds.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{total:8.1f} s {tests[folder]:5} tests  {folder}")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def run_hvscale(
    folder: Path, *arguments: object, timeout: float = HANG_SECONDS, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the installed command in the folder and return the process."""
    return subprocess.run(
        [PROGRAMS / "hvscale", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture(scope="session")
def is_first(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bool]:
    """Whether no test worker has asked for this name before."""
    base = tmp_path_factory.getbasetemp()
    asked = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "asked-for"
    asked.mkdir(exist_ok=True)

    def ask(name: str) -> bool:
        try:
            (asked / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    return ask


@pytest.fixture
def hvscale(tmp_path: Path, is_first: Callable[[str], bool]) -> Run:
    """`hvscale("launch", "-np", "2", ...)` runs in a fresh folder and returns the process.

    Sub-commands are forked: see tests/preloaded.py. The first call of each runs the installed
    command, and so does a call with variables that a process reads when it starts.
    """

    def run(*arguments: object, timeout: float = HANG_SECONDS, **environment: str) -> subprocess.CompletedProcess[str]:
        words, variables = [*map(str, arguments)], {**os.environ, "COLUMNS": "200", **environment}
        forked = words[0] in preloaded.FORKED and not is_first(words[0])
        if forked and preloaded.can_apply(variables):
            return preloaded.run(words, tmp_path, variables, timeout)
        return run_hvscale(tmp_path, *words, timeout=timeout, **environment)

    return run


def write_program(folder: Path, text: str) -> Path:
    """Write a Python program to program.py in the folder and return its path."""
    path = folder / "program.py"
    path.write_text(f"{QUICK_START}\n{text}" if "horovod.torch" in text else text)
    return path


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Write a Python program to the test's folder and return its path."""

    def write(text: str) -> Path:
        return write_program(tmp_path, text)

    return write


def run_json(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "run.json").read_text())
    return record


def requested_env(record: dict[str, Any]) -> dict[str, str]:
    """Return the requested variables of a run.json; "(hidden)" if the value is not recorded."""
    pairs = (request.partition("=") for request in record["launch"].get("env", []))
    return {name: value if equals else "(hidden)" for name, equals, value in pairs}


def requested_knobs(record: dict[str, Any]) -> dict[str, str]:
    return dict(request.split("=", 1) for request in record["launch"].get("set", []))


def processes_below(folder: Path, named: str = "") -> list[psutil.Process]:
    """Return all living processes of runs in the folder whose name contains `named`."""
    found = []
    for process in psutil.process_iter():
        try:
            run = process.environ().get("HVSCALE_RUN", "")
            living = process.status() != psutil.STATUS_ZOMBIE
            if living and Path(run).is_relative_to(folder) and named in process.name():
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_below(folder: Path) -> None:
    """Kill all processes of runs in the folder; some may end meanwhile."""
    for process in processes_below(folder):
        with suppress(psutil.Error):
            process.kill()


def suspend(pid: int) -> None:
    """Send SIGSTOP, and return when the process has stopped: it may do more until then."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"timeout of {HANG_SECONDS} s"
        time.sleep(0.05)


def start_job(folder: Path, *arguments: object, prints: str, **environment: str) -> "subprocess.Popen[str]":
    """Start `hvscale` with two ranks in the run "job" of a folder; wait until both print a text."""
    job = subprocess.Popen(
        [str(PROGRAMS / "hvscale"), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    logs = [folder / f"job/logs/rank-{rank:05d}.log" for rank in range(2)]
    wait_until(lambda: job.poll() is not None or all(log.exists() and prints in log.read_text() for log in logs))
    assert job.poll() is None, job.communicate()
    return job


@pytest.fixture(autouse=True)
def private_image_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep decoded images in the test's folder."""
    monkeypatch.setenv("HVSCALE_DECODED", str(tmp_path / "decoded"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`small_disk("500k")` mounts a file system of that size in the test's folder."""
    mounted: list[Path] = []

    def mount(size: str, folder: str = "small") -> Path:
        path = tmp_path / folder
        path.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a small file system needs root")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)
