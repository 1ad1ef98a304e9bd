"""Errors of the set-up: missing tools, no network, invalid settings.

Each test runs setup/install.py in a small copy of this clone, with its own cache.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.setup.copies import (
    CLONE,
    copy_clone,
    link_private_uv,
    link_tools,
    replace_tool,
    run_setup,
    setup_environment,
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return copy_clone(tmp_path / "clone")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    return link_tools(tmp_path / "bin")


def assert_error(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    ("lacking", "debian", "fedora"),
    [
        (["c++"], "apt install g++", "dnf install gcc-c++"),
        (["cc", "gcc"], "apt install gcc", "dnf install gcc"),
        (["make"], "apt install make", "dnf install make"),
        (["make", "c++"], "apt install make g++", "dnf install make gcc-c++"),
    ],
)
def test_missing_tool_is_named_with_its_packages(
    copy: Path, cache: Path, tools: Path, lacking: list[str], debian: str, fedora: str
) -> None:
    for name in lacking:
        (tools / name).unlink()
    assert_error(run_setup(copy, setup_environment(cache, PATH=str(tools))), debian, fedora)


def test_compiler_without_cxx20_is_found_before_the_build(copy: Path, cache: Path, tools: Path) -> None:
    replace_tool(tools / "c++", '[ "$1" = --version ] && echo "old 4.8" && exit; exit 1')
    assert_error(run_setup(copy, setup_environment(cache, PATH=str(tools))), "C++20", "apt install g++")
    assert not (copy / ".venv").exists()


def test_missing_python_headers_are_found_before_the_build(copy: Path, cache: Path, tools: Path) -> None:
    compiler = shutil.which("c++")
    without_headers = f'for word; do [ "$word" = -I ] && exec {compiler} -fsyntax-only -x c++ - -include Python.h; done'
    replace_tool(tools / "c++", f'{without_headers}\nexec {compiler} "$@"')
    assert_error(run_setup(copy, setup_environment(cache, PATH=str(tools))), "apt install python3-dev", "python3-devel")


def test_old_python_gives_a_one_line_error(copy: Path) -> None:
    as_python_3_9 = "import runpy, sys; sys.version_info = (3, 9, 18); sys.argv = sys.argv[1:]; "
    run_main = "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", as_python_3_9 + run_main, str(copy / "setup" / "install.py")]
    assert_error(
        subprocess.run(command, capture_output=True, text=True, check=False),
        "Python 3.9 is too old",
        "3.11",
        "apt",
        "dnf",
    )


def test_old_python_can_parse_install_py() -> None:
    assert ast.parse((CLONE / "setup" / "install.py").read_text(), feature_version=(3, 6)).body


def test_make_passes_the_chosen_python(copy: Path, cache: Path, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho "run: $*"\n')
    fake.chmod(0o755)
    done = subprocess.run(
        ["make", "--no-print-directory", "setup", f"PYTHON={fake}"],
        cwd=copy,
        env=setup_environment(cache),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "run: setup/install.py --mpi openmpi"


def test_no_network_gives_a_one_line_error(copy: Path, cache: Path, tmp_path: Path) -> None:
    unreachable = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "UV_HTTP_RETRIES": "0"}
    link_private_uv(cache)
    done = run_setup(copy, setup_environment(cache, UV_CACHE_DIR=str(tmp_path / "empty"), **unreachable))
    assert done.returncode == 2
    progress, reason = done.stderr.splitlines()
    assert "installing the Python packages" in progress
    assert "no network" in reason
    assert "HTTPS_PROXY" in reason


def test_no_network_without_uv_leaves_no_files(copy: Path, cache: Path, tools: Path) -> None:
    (tools / "uv").unlink(missing_ok=True)
    unreachable = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_FIND_LINKS": "",
    }
    done = run_setup(copy, setup_environment(cache, PATH=str(tools), **unreachable))
    assert done.returncode == 2
    assert "no network" in done.stderr.splitlines()[-1]
    assert [path.name for path in cache.iterdir()] == ["uv.log"]


def test_site_mpi_without_mpicxx_is_rejected(copy: Path, cache: Path, tmp_path: Path) -> None:
    assert_error(
        run_setup(copy, setup_environment(cache, HVSCALE_MPI_HOME=str(tmp_path))),
        "HVSCALE_MPI_HOME",
        "bin/mpicxx",
        "apt install",
    )


def test_site_mpi_of_another_abi_is_rejected(copy: Path, cache: Path) -> None:
    """Use the Open MPI of this clone as the site's MPI."""
    done = run_setup(copy, setup_environment(cache, HVSCALE_MPICH_HOME=str(CLONE / ".venv")), "--mpi", "mpich")
    assert_error(done, "HVSCALE_MPICH_HOME", "libmpi.so.12", "Open MPI")
    assert not (copy / ".venv-mpich").exists()


def test_unknown_mpi_is_rejected(copy: Path, cache: Path) -> None:
    done = run_setup(copy, setup_environment(cache), "--mpi", "lam")
    assert done.returncode == 2
    assert "invalid choice: 'lam'" in done.stderr


def test_nccl_without_a_toolkit_is_rejected(copy: Path, cache: Path, tools: Path) -> None:
    if Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("this machine has a CUDA toolkit")
    environment = setup_environment(cache, PATH=str(tools), HVSCALE_NCCL="1")
    assert_error(run_setup(copy, environment), "HVSCALE_CUDA_HOME")


@pytest.mark.parametrize("variable", ["CC", "CXX", "HVSCALE_CUDA_HOME"])
def test_a_named_tool_that_is_missing_is_not_replaced_by_another(copy: Path, cache: Path, variable: str) -> None:
    assert_error(
        run_setup(copy, setup_environment(cache, **{variable: "/no/such"})), f"{variable}=/no/such", "unset it"
    )


def test_later_calls_keep_the_interpreter(copy: Path) -> None:
    outer = ("PYTHON", "TORCH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")  # of the make that runs the tests
    environment = {name: value for name, value in os.environ.items() if name not in outer}

    def interpreter(*words: str) -> str:
        command = ["make", "--dry-run", "setup", *words]
        shown = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=True)
        return shown.stdout.split()[0]

    assert interpreter() == "python3"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=copy, check=True)
    chosen = Path(interpreter())
    assert chosen.is_absolute()
    assert chosen.samefile(sys.executable)
    assert interpreter("PYTHON=python3.99") == "python3.99"
    assert interpreter("TORCH=site") == "python3"
    (copy / ".venv").rename(copy / ".venv-mpich")  # as where only an MPI with MPICH's ABI is used
    assert Path(interpreter("MPI=/opt/mvapich2-2.3.7")).samefile(sys.executable)
    (copy / ".venv-mpich/bin/python").unlink()
    assert interpreter() == "python3"
