"""The record of what Horovod was built against, and the check of each start."""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.launch import flavours
from hvscale.launch.cleanup.shared_memory import SEGMENT
from hvscale.launch.mpi import build_record, horovod_build
from tests.conftest import Run

VERSION_FILE = "from typing import Optional\n__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\n"
REBUILD = "make -C '/opt/my clone' setup MPI=site TORCH=site PYTHON=/opt/python"


def site_record(torch: Path, home: Path | None = None) -> dict[str, Any]:
    return {
        "schema": "hvscale/horovod-build/1",
        "horovod": "0.28.1",
        "torch": {
            "version": "2.6.0+cu124",
            "cuda": "12.4",
            "cxx11_abi": False,
            "folder": str(torch),
            "version_file_sha256": hashlib.sha256(VERSION_FILE.encode()).hexdigest(),
        },
        "mpi": {"version": "MVAPICH2 2.3.7", "library": None, "home": str(home) if home else None},
        "cuda": None,
        "nccl": None,
        "compiler": "c++ 12.2.0",
        "cxx_standard": 17,
        "rebuild": REBUILD,
    }


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """A site's PyTorch, as far as the check reads it."""
    folder = tmp_path / "site" / "torch"
    folder.mkdir(parents=True)
    (folder / "version.py").write_text(VERSION_FILE)
    return folder


@pytest.fixture
def library(tmp_path: Path, torch: Path) -> Path:
    """Horovod's library in an environment, with a record beside it."""
    package = tmp_path / "prefix/lib/python3.11/site-packages/horovod/torch"
    package.mkdir(parents=True)
    (package.parent / build_record.FILE_NAME).write_text(json.dumps(site_record(torch)))
    path = package / "mpi_lib_v2.so"
    path.write_bytes(b"\0libmpi.so.12\0")
    return path


def test_the_same_pytorch_passes(library: Path) -> None:
    build_record.check_torch(library, {})


def test_another_pytorch_in_its_folder_is_an_error(library: Path, torch: Path) -> None:
    (torch / "version.py").write_text(VERSION_FILE.replace("2.6.0+cu124", "2.7.1+cu126"))
    with pytest.raises(RequestError) as error:
        build_record.check_torch(library, {})
    assert str(error.value) == (
        f"Horovod was built for PyTorch 2.6.0+cu124 (CUDA 12.4), but {torch} is PyTorch 2.7.1+cu126: "
        f"build it again: {REBUILD}"
    )


def test_the_same_release_for_another_cuda_is_an_error(library: Path, torch: Path) -> None:
    (torch / "version.py").write_text(VERSION_FILE.replace("'12.4'", "None"))
    with pytest.raises(RequestError, match="build it again"):
        build_record.check_torch(library, {})


def test_a_pytorch_in_the_environment_comes_first(library: Path) -> None:
    own = library.parents[2] / "torch"
    own.mkdir()
    (own / "version.py").write_text("__version__ = '2.15.0'\n")
    with pytest.raises(RequestError, match=f"{own} is PyTorch 2.15.0"):
        build_record.check_torch(library, {})


def test_a_pytorch_in_pythonpath_comes_before_it(library: Path, tmp_path: Path) -> None:
    module = tmp_path / "module" / "torch"
    module.mkdir(parents=True)
    (module / "version.py").write_text("__version__ = '2.8.0'\n")
    with pytest.raises(RequestError, match=r"PyTorch 2\.8\.0"):
        build_record.check_torch(library, {"PYTHONPATH": f"/nowhere::{module.parent}"})


def test_a_pytorch_that_is_gone_is_an_error(library: Path, torch: Path) -> None:
    shutil.rmtree(torch)
    with pytest.raises(RequestError, match="is no longer there: load its module") as error:
        build_record.check_torch(library, {})
    assert str(error.value).endswith(REBUILD)


def test_a_horovod_without_a_record_is_not_checked(library: Path) -> None:
    (library.parent.parent / build_record.FILE_NAME).unlink()
    build_record.check_torch(library, {})
    assert build_record.rebuild_command(library) == "make setup"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is damaged"),
        (json.dumps({"schema": "hvscale/horovod-build/9"}), "was written by a newer hvscale"),
        (json.dumps({"schema": "hvscale/horovod-build/1"}), "is damaged"),
    ],
)
def test_an_unreadable_record_is_an_error(library: Path, text: str, words: str) -> None:
    path = library.parent.parent / build_record.FILE_NAME
    path.write_text(text)
    with pytest.raises(RequestError, match=words) as error:
        build_record.check_torch(library, {})
    assert "make setup" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@given(st.binary(max_size=300))
def test_any_record_is_read_or_rejected(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "horovod", "torch")
        package.mkdir(parents=True)
        (package.parent / build_record.FILE_NAME).write_bytes(content)
        with pytest.raises(RequestError):
            build_record.read_record(package / "mpi_lib_v2.so")


def test_launch_names_the_mismatch_in_one_line(hvscale: Run, library: Path, torch: Path, tmp_path: Path) -> None:
    """Also under Gloo, which does not ask for the MPI library."""
    (torch / "version.py").write_text(VERSION_FILE.replace("2.6.0+cu124", "2.7.1+cu126"))
    python = tmp_path / "prefix" / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    for mpi in ("openmpi", "gloo"):
        done = hvscale("launch", "-np", "2", "--mpi", mpi, "--run", tmp_path / "job", "--", python, "-c", "pass")
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert REBUILD in done.stderr
        assert not (tmp_path / "job").exists()


def test_the_sites_launcher_comes_behind_the_environments_programs(
    library: Path, torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hvscale launch` finds the MPI of `make setup MPI=/folder` although PATH does not have it."""
    home = tmp_path / "mvapich2"
    (home / "bin").mkdir(parents=True)
    (library.parent.parent / build_record.FILE_NAME).write_text(json.dumps(site_record(torch, home)))
    prefix = tmp_path / "prefix"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    flavour = flavours.get("mvapich2")
    changed = horovod_build.with_flavour_programs({"PATH": "/usr/bin"}, flavour)
    assert changed["PATH"] == f"{prefix}/bin:{home}/bin:/usr/bin"
    assert horovod_build.with_flavour_programs(changed, flavour) == changed
    kept = horovod_build.with_flavour_programs({"PATH": f"/x:{home}/bin"}, flavour)
    assert kept["PATH"] == f"{prefix}/bin:/x:{home}/bin"
    open_mpi = horovod_build.with_flavour_programs({"PATH": "/usr/bin"}, flavours.get("openmpi"))
    assert open_mpi["PATH"] == f"{prefix}/bin:/usr/bin"
    # As after `module load` of another MPI with this ABI.
    other = tmp_path / "other" / "lib"
    other.mkdir(parents=True)
    (other / "libmpi.so.12").touch()
    loaded = horovod_build.with_flavour_programs({"PATH": "/usr/bin", "LD_LIBRARY_PATH": str(other)}, flavour)
    assert loaded["PATH"] == f"{prefix}/bin:/usr/bin"


@pytest.mark.parametrize(
    ("name", "removed"),
    [
        ("ib_shmem-kvs_4242_0_n1_0-n1-1000.tmp", True),
        ("ib_pool-kvs_4242_0_n1_0-n1-1000.tmp", True),
        ("ib_shmem_coll-kvs_4242_0_n1_0-n1-1000.tmp", True),
        ("ib_shmem_bcast_coll-kvs_4242_0_n1_0-n1-1000", True),
        ("mpich_shar_tmpIyug5q", True),
        ("nccl-0GlVN2", True),
        ("nccl-topology", False),
        ("ib_shmem", False),
        ("my_ib_shmem-x-n1-1000.tmp", False),
        ("ib_shmem-kvs-n1-1000.tmp.backup", False),
    ],
)
def test_segments_are_known_by_their_names(name: str, removed: bool) -> None:
    assert (SEGMENT.fullmatch(name) is not None) == removed


def test_the_set_up_wrote_the_record_of_this_environment() -> None:
    library = horovod_build.library_in(Path(sys.prefix))
    assert library is not None
    record = build_record.read_record(library)
    assert record is not None
    show = "import torch; print(torch.__version__, torch.version.cuda)"
    shown = subprocess.check_output([sys.executable, "-c", show], text=True).split()
    assert [record.torch.version, str(record.torch.cuda)] == shown
    assert record.rebuild.startswith("make -C ")


def test_an_environment_beside_this_one_that_cannot_be_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / ".venv-mpich/bin/python"
    python.parent.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    python.symlink_to("/bin/sh")
    assert horovod_build.environments_of_clone() == [tmp_path / ".venv", tmp_path / ".venv-mpich"]
    python.unlink()
    # As a Python in another user's home, this one makes stat fail; permissions do not stop root.
    python.symlink_to("x" * 300)
    assert horovod_build.environments_of_clone() == [tmp_path / ".venv"]
