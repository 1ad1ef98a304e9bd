"""`hvscale launch` with an Open MPI release other than the environment's."""

import os
import subprocess
from pathlib import Path

import pytest

from hvscale.launch.mpi.horovod_build import linked_mpi
from tests.conftest import PROGRAMS, Run, run_json

SYSTEM_MPIRUN = Path("/usr/bin/mpirun")

OTHER_RELEASE = r"""
int MPI_Init(void) { return 0; }
int MPI_Get_library_version(char *text, int *length)
{
    const char *said = "Open MPI v4.1.4, package: Debian OpenMPI";
    for (*length = 0; (text[*length] = said[*length]) != 0; ++*length)
        ;
    return 0;
}
"""


@pytest.fixture
def python_with_other_horovod(tmp_path: Path) -> Path:
    """Make a python whose Horovod needs the libmpi.so.40 in the test's folder, which is not in any
    search path.
    """
    package = tmp_path / "prefix/lib/python3.11/site-packages/horovod/torch"
    package.mkdir(parents=True)
    (tmp_path / "prefix/bin").mkdir()
    (tmp_path / "prefix/bin/python").symlink_to(PROGRAMS / "python")
    (tmp_path / "mpi.c").write_text(OTHER_RELEASE)
    (tmp_path / "hvd.c").write_text("int MPI_Init(void); int start(void) { return MPI_Init(); }")
    mpi = tmp_path / "libmpi.so.40"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.40", "-o", mpi, tmp_path / "mpi.c"], check=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", package / "mpi_lib_v2.so", tmp_path / "hvd.c", mpi], check=True)
    return tmp_path / "prefix/bin/python"


def test_a_missing_library_is_named(hvscale: Run, python_with_other_horovod: Path) -> None:
    if "libmpi.so.40" in subprocess.check_output(["/sbin/ldconfig", "-p"], text=True):
        pytest.skip("this machine has an Open MPI of its own, which is found")
    nowhere = hvscale("launch", "-np", "2", "--", python_with_other_horovod, "-c", "pass")
    assert nowhere.returncode == 2
    assert "needs libmpi.so.40, which was not found" in nowhere.stderr


def test_horovod_linked_to_another_release_is_an_error(
    hvscale: Run, python_with_other_horovod: Path, tmp_path: Path
) -> None:
    command = ("launch", "-np", "2", "--", python_with_other_horovod, "-c", "pass")
    other = hvscale(*command, LD_LIBRARY_PATH=str(tmp_path))
    assert other.returncode == 2
    assert "is built for Open MPI 4.1.4 (libmpi.so.40), but" in other.stderr
    assert len(other.stderr.splitlines()) == 1


def test_the_library_is_found_behind_the_cxx_bindings(tmp_path: Path) -> None:
    """Debian's mpicxx links programs to libmpi_cxx.so.40 first, and then to libmpi.so.40."""
    (tmp_path / "any.c").write_text("int any(void) { return 0; }")
    shared = ["cc", "-shared", "-fPIC", f"-Wl,-rpath,{tmp_path},--no-as-needed"]
    libraries = [tmp_path / name for name in ("libmpi_cxx.so.40", "libmpi.so.40")]
    for library in libraries:
        subprocess.run([*shared, f"-Wl,-soname,{library.name}", "-o", library, tmp_path / "any.c"], check=True)
    subprocess.run([*shared, "-o", tmp_path / "mpi_lib_v2.so", tmp_path / "any.c", *libraries], check=True)
    assert linked_mpi(tmp_path / "mpi_lib_v2.so", dict(os.environ)) == ("libmpi.so.40", libraries[1])


def test_the_distributions_open_mpi_starts_ranks(hvscale: Run, tmp_path: Path) -> None:
    if not SYSTEM_MPIRUN.exists() or "Open MPI" not in subprocess.check_output([SYSTEM_MPIRUN, "--version"], text=True):
        pytest.skip("no Open MPI in /usr/bin (Debian's openmpi-bin brings release 4)")
    path = f"{SYSTEM_MPIRUN.parent}:{os.environ['PATH']}:{PROGRAMS}"
    print_rank = ("sh", "-c", "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE")
    done = hvscale("launch", "-np", "3", "--run", "job", "--", *print_rank, PATH=path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {rank} of 3" for rank in range(3)]
    assert run_json(tmp_path / "job")["library"]["launcher"] == str(SYSTEM_MPIRUN)
