"""Interrupted, failing and cached builds of Horovod, with the real pip, CMake and compiler."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import HANG_SECONDS, QUICK_START
from tests.setup.copies import CLONE, copy_clone, link_tools, replace_tool, run_setup, setup_environment

MPICH = CLONE / ".venv-mpich"
CONFIGURING = "CXX compiler identification"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One copy for all tests of this file; uv fills its .venv once, from its cache."""
    folder = copy_clone(tmp_path_factory.mktemp("build") / "with a space")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def start_build(copy: Path, cache: Path) -> "subprocess.Popen[str]":
    """Start a set-up with an empty cache and return when CMake runs."""
    command = [sys.executable, str(copy / "setup" / "install.py")]
    process = subprocess.Popen(command, env=setup_environment(cache), stderr=subprocess.PIPE, text=True)
    assert wait_for(lambda: any(CONFIGURING in log.read_text() for log in cache.glob("horovod/logs/*.log")), 120), (
        process.poll()
    )
    return process


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def unfinished_builds(cache: Path) -> list[str]:
    """List the files of the wheel cache except for the lock and the logs."""
    return sorted(path.name for path in (cache / "horovod").iterdir() if path.name not in (".lock", "logs"))


def processes_using(folder: Path) -> list[str]:
    """Return the command lines of processes that name a folder or run in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            place = str((process / "cwd").readlink())
        except OSError:
            continue
        if str(folder) in words or str(folder) in place:
            found.append(words)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_build_leaves_no_files(copy: Path, cache: Path, number: signal.Signals) -> None:
    process = start_build(copy, cache)
    process.send_signal(number)
    _, output = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert "interrupted" in output.splitlines()[-1]
    assert "Traceback" not in output
    assert unfinished_builds(cache) == []
    assert processes_using(cache) == []


def test_next_set_up_cleans_up_after_a_killed_build_and_names_the_log_of_a_failed_one(
    copy: Path, cache: Path, tmp_path: Path
) -> None:
    process = start_build(copy, cache)
    process.kill()
    process.communicate(timeout=HANG_SECONDS)
    assert wait_for(lambda: processes_using(cache) == [], 10), "compilers still run after the set-up was killed"
    leftovers = unfinished_builds(cache)
    assert [name.split("-")[0] for name in leftovers] == [".building"]

    for log in cache.glob("horovod/logs/*.log"):  # of the killed build
        log.unlink()
    done = run_setup(copy, setup_environment(cache, PATH=str(path_with_failing_compiler(tmp_path))))
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    (log,) = cache.glob("horovod/logs/*.log")
    assert str(log) in last
    assert "CMake Error" in last
    assert "compiler refuses" in log.read_text()
    assert unfinished_builds(cache) == []


def path_with_failing_compiler(tmp_path: Path) -> Path:
    """Return a PATH whose C++ compiler passes the set-up's checks and then fails."""
    tools = link_tools(tmp_path / "bin")
    compiler = shutil.which("c++")
    pass_checks = f'for word; do case $word in --version|-fsyntax-only) exec {compiler} "$@";; esac; done'
    replace_tool(tools / "c++", f"{pass_checks}\necho compiler refuses >&2\nexit 1")
    return tools


def test_second_clone_uses_the_cached_wheel_and_its_own_mpi(copy: Path) -> None:
    done = run_setup(copy, dict(os.environ))  # with the cache of this machine
    assert done.returncode == 0, done.stderr
    assert "building" not in done.stderr
    assert key_of_installed_horovod(copy) == key_of_installed_horovod(CLONE)

    loaded = f"{QUICK_START}\nimport horovod.torch as hvd; hvd.init(); print(open('/proc/self/maps').read())"
    python = copy / ".venv" / "bin" / "python"
    maps = subprocess.run([python, "-c", loaded], capture_output=True, text=True, check=True, cwd=copy.parent).stdout
    libraries = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "libmpi.so" in line}
    assert libraries
    assert all(library.startswith(str(copy / ".venv")) for library in libraries), libraries


def test_the_mpich_environment_is_separate(copy: Path) -> None:
    """The path of the clone contains a space; the wheel comes from this machine's cache."""
    if not MPICH.exists():
        pytest.skip("no MPICH environment in this clone: make setup-dev MPI=mpich")
    done = run_setup(copy, dict(os.environ), "--mpi", "mpich")
    assert done.returncode == 0, done.stderr
    assert "building" not in done.stderr
    assert (copy / ".venv-mpich" / "lib" / "libmpi.so.12").exists()
    assert not (copy / ".venv-mpich" / "lib" / "libmpi.so.40").exists()
    assert not (copy / ".venv" / "lib" / "libmpi.so.12").exists()
    assert key_of_installed_horovod(copy, ".venv-mpich") == key_of_installed_horovod(CLONE, ".venv-mpich")


def test_environment_of_a_killed_set_up_is_recreated(copy: Path) -> None:
    """A SIGKILL during uv leaves the marker file and incomplete packages."""
    half_installed = copy / ".venv" / "half-installed"
    half_installed.parent.mkdir(exist_ok=True)
    half_installed.touch()
    (copy / ".venv-setup" / "installing").touch()
    done = run_setup(copy, dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "recreating .venv" in done.stderr
    assert not half_installed.exists()
    assert key_of_installed_horovod(copy) == key_of_installed_horovod(CLONE)


def key_of_installed_horovod(clone: Path, environment: str = ".venv") -> str:
    """Return the name of the cache folder of the environment's wheel."""
    (record,) = (clone / environment).glob("lib/python3*/site-packages/horovod-*.dist-info/direct_url.json")
    return Path(json.loads(record.read_text())["url"]).parent.name
